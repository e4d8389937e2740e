"""One module per schema revision, in order; revision names are four digits so that they compare as text."""
