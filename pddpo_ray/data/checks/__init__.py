"""What can be wrong with rows, found in two passes."""
