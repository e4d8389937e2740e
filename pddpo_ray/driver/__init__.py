"""One run from its recipe to its result: parts built, work before round 1, rounds, evaluation."""
