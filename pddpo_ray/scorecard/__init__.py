"""A fixed set of questions, answered by the reference and by every round's policy alike."""
