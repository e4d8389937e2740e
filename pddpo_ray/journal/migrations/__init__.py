"""Schema revisions of the journal, run by alembic over an open connection (never from a command line)."""
