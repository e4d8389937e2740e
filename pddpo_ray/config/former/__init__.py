"""Keys of earlier versions, and what to write in their place."""
