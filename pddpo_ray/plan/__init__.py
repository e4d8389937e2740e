"""What a recipe takes, what this machine has, and whether the two fit."""
