"""A question may be a limit's own, which its text asks.

Revision: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("task", sa.Column("asks", sa.Text(), nullable=True))
