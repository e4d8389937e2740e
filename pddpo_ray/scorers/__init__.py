"""Reward and cost models of a run, who labels its answers, and whether the models can be trusted."""
