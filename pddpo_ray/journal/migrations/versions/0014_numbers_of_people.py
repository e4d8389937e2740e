"""A question may ask for a number within bounds.

Revision: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("low", "high"):
        op.add_column("task", sa.Column(name, sa.Float(), nullable=True))
