"""One module per method; each a short loop over the same parts, with one line per line of the paper's box."""
