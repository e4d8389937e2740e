"""What a person sees of a run: live progress, one line per round, TensorBoard files and report.html."""
