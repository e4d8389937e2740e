"""Tabular worlds: finitely many prompts and answers."""
