"""A person may have an hourly rate of their own.

Revision: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("annotator", sa.Column("hourly_rate", sa.Float(), nullable=True))
