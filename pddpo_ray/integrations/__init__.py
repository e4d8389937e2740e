"""Limits inside other people's trainers: thin layers over one controller, which is free of any trainer."""
