"""The schema of version 0.1, where revisions begin: no journal is older. A new journal is made from the tables as they
stand in `journal.schema` and takes no revision at all.

Revision: 0004
"""

from __future__ import annotations

revision = "0004"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing: journals of version 0.1 are here already."""
