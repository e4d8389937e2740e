"""Tables, the log-linear twin, and text worlds for other trainers: exported, labelled by their truth, and scored."""
