"""Formats of rows: how each is recognised, read and written."""
