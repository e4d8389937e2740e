"""The queue: batches of questions, who is handed which, and the answers."""
