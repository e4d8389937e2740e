"""Inference engines that draw answers from published policies, and the check that they hold the right weights."""
