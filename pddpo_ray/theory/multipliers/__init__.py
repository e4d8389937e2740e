"""Multipliers: one step of each rule, several limits together, and what a limit costs."""
