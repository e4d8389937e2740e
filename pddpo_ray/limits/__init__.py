"""Limits as people state them: what is measured, by whom, over which prompts, and how much of it is allowed."""
