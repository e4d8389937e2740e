"""The schema of version 0.2.0, where revisions begin: an older journal is refused. A new journal is made from the
tables as they stand in `journal.schema` and takes no revision at all.

A revision of the same generation only adds; one whose new tables do not suit older software begins the next one.

Revision: 0015
"""

from __future__ import annotations

revision = "0015"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing: journals of version 0.2.0 are here already."""
