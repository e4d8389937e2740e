"""Text worlds: sentences of a grammar under a small language model."""
