"""Text worlds for other trainers: exported, labelled by their truth, and scored against it."""
