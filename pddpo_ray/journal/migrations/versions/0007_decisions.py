"""A batch of questions remembers how long its run waits for it; an estimate, how much missing labels may lower it.

Revision: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("question_round", sa.Column("waits_s", sa.Float(), nullable=True))
    op.add_column("dual_step", sa.Column("missing", sa.Float(), nullable=False, server_default="0"))
