"""Losses of the stages and of the compared methods."""
