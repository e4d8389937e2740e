"""A lead holds people's answers back, invites by link and decides where people differ.

Revision: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pddpo_ray.journal.annotation_schema import adjudication, invitation

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("annotator", sa.Column("held", sa.Boolean(), nullable=False, server_default=sa.text("false")))
    op.add_column("annotator", sa.Column("harmful_cap", sa.Integer(), nullable=False, server_default=sa.text("150")))
    connection = op.get_bind()
    invitation.create(connection)
    adjudication.create(connection)
