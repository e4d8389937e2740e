"""Worlds with a known truth: `oracle` and `table_limits` (exact answers), `text` (sentences of a grammar)."""
