"""A release may take hours, and a key may end by itself.

Revision: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("release") as release:
        release.add_column(sa.Column("hours", sa.Float()))
    with op.batch_alter_table("api_key") as api_key:
        api_key.add_column(sa.Column("expires_ms", sa.BigInteger()))
