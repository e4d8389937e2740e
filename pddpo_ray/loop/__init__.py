"""One run from its recipe to its result: the parts a method calls, the work behind them, the phases of a round."""
