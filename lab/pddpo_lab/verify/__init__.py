"""`pddpo verify`: the formulas against exact answers, and the theory's claims as experiments."""
