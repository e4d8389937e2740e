"""Training without Ray: batches, log-probabilities, the fit loop, the plain torch engine and its in-process backend."""
