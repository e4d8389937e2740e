"""The parts that a method calls: rollouts, labels, measured limits, the dual, fits, exploration, stored pairs."""
