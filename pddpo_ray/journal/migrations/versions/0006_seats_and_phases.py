"""A seat has a number; the phases of the explicit multiplier and of a method's own models are called so.

Revision: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

PHASES = {"price": "explicit-multiplier", "page-models": "method-models"}


def upgrade() -> None:
    op.alter_column("seat", "place", new_column_name="number")
    phase = sa.table("phase", sa.column("phase"))
    for old, new in PHASES.items():
        op.get_bind().execute(sa.update(phase).where(phase.c.phase == old).values(phase=new))
