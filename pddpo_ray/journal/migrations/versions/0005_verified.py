"""A delivery is called verified: a checksum and a canary prove nothing in the mathematical sense.

Revision: 0005
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("delivery") as delivery:
        delivery.alter_column("proven", new_column_name="verified")
