"""The mathematics: losses, multipliers, estimates and intervals as plain functions, without input or output."""
