"""Estimates of limits from labels and measurements, with standard errors and intervals."""
