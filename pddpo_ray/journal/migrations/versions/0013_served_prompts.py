"""What clients give to training, and keys whose holders agreed to it.

Revision: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pddpo_ray.journal.served_schema import served_answer, served_prompt, served_withdrawal

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_key", sa.Column("consented", sa.Boolean(), nullable=False, server_default=sa.text("false")))
    connection = op.get_bind()
    for table in (served_prompt, served_answer, served_withdrawal):
        table.create(connection)
