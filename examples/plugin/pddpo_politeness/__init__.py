"""One extension of pddpo_ray of each kind; `pyproject.toml` of this package makes them known."""
