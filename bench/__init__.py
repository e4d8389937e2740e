"""Experiments and benchmarks that take longer than tests; their tables are in docs/."""
