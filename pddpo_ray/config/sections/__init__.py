"""Sections of a recipe, one subject a file."""
