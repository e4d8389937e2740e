"""Questions in the order in which they are offered: a balance as a column, and an index over it.

Revision: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BALANCE = "CASE WHEN state = 'open' AND gold IS NULL THEN seats + leased - needed ELSE 0 END"


def upgrade() -> None:
    # SQLite adds such a column to a table only unstored, PostgreSQL indexes only a stored one.
    stored = op.get_bind().dialect.name == "postgresql"
    op.add_column("task", sa.Column("balance", sa.Integer(), sa.Computed(BALANCE, persisted=stored), nullable=True))
    op.create_index("ix_task_offer", "task", ["question_round", "balance", "priority", "id", "risk"], unique=False)
