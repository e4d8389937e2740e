"""A lead holds people's answers back, invites by link and decides where people differ.

Revision: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pddpo_ray.journal.annotation_schema import adjudication

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("annotator", sa.Column("held", sa.Boolean(), nullable=False, server_default=sa.text("false")))
    op.add_column("annotator", sa.Column("harmful_cap", sa.Integer(), nullable=False, server_default=sa.text("150")))
    op.create_table(
        "invitation",
        sa.Column("code_sha256", sa.String(64), primary_key=True),
        sa.Column("handle", sa.String(100), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("sees_harmful", sa.Boolean(), nullable=False),
        sa.Column("daily_cap", sa.Integer(), nullable=False),
        sa.Column("by", sa.String(64), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("used_ms", sa.BigInteger()),
    )
    adjudication.create(op.get_bind())
