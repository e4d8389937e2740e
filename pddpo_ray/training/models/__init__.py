"""Models that are trained: where they come from, adapters, score heads."""
