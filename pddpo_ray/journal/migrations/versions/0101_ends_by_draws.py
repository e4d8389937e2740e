"""Keeps the ends of an estimate's interval that its draws give.

Revision: 0101
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = "0100"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for end in ("low", "high"):
        op.add_column("dual_step", sa.Column(end, sa.Float()))
