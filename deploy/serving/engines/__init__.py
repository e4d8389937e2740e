"""Engines of the endpoint: vLLM, whose turn it is, and what waits for it."""
