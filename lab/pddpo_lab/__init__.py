"""The laboratory: what studies the product and is not installed with it."""
