"""A prompt keeps the messages that it was rendered from.

Revision: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("prompt", sa.Column("messages", sa.JSON(), nullable=False, server_default="[]"))
