"""PPO-Lagrangian, with two critics or with groups of answers: the losses, one update, and its part in a run."""
