"""Worlds with a known truth: `oracle` (exact answers), `tabular` (finite tables), `text` (sentences of a grammar)."""
