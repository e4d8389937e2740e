"""A revision after today's, so that this software is the older one of two."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pddpo_ray.journal import database

REVISION = '''"""A question remembers a note.

Revision: {after}
"""

import sqlalchemy as sa
from alembic import op

revision = "{after}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("task", sa.Column("note", sa.Text(), nullable=True))
'''


def with_next_revision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """From here on this process knows one revision more, which adds a column to the questions; others do not."""
    before, after = database.HEAD, f"{int(database.HEAD) + 1:04}"
    shutil.copytree(database.MIGRATIONS, folder / "migrations")
    (folder / "migrations" / "versions" / f"{after}_note.py").write_text(REVISION.format(before=before, after=after))
    monkeypatch.setattr(database, "MIGRATIONS", folder / "migrations")
    monkeypatch.setattr(database, "HEAD", after)
    return after
