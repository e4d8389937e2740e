"""Trackers that get the numbers of every round."""
