"""What is kept on disk beside the journal: weights, adapters, frozen numbers, and what to say when it is full."""
