"""What a lead looks at and decides: quality, flags, disagreement, single labels."""
