"""Sections of the report, one subject a file."""
