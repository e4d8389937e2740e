"""The version, where pages and reports can name it without importing the public names of the root."""

__version__ = "0.2.0"
