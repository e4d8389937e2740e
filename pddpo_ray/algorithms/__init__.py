"""One module per method; each is a short page over the same parts, one line per line of the paper's box."""
