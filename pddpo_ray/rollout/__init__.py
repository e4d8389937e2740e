"""Inference engines that draw answers from published policies, and the proof that they hold the right weights."""
