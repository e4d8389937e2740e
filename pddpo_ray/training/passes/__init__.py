"""Passes of a model over texts: shapes, packing, memory, log-probabilities."""
