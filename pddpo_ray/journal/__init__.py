"""The journal: a SQL database that is the only truth about a run (SQLite in WAL mode, or PostgreSQL by URL)."""

# The tables of the queue and of what clients gave belong to the database's metadata, whoever opens it.
from pddpo_ray.journal import annotation_schema, served_schema
from pddpo_ray.journal.journal import Journal
from pddpo_ray.journal.reading import JournalReader, read_journal
from pddpo_ray.journal.rows import (
    DeliveryEntry,
    DualEntry,
    JournalEvent,
    PhaseEntry,
    RunEntry,
    VersionEntry,
)
