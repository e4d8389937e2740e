"""Commands that join `pddpo` where the laboratory is installed."""
