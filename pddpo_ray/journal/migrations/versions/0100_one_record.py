"""Begins a generation: software that writes labels or limits into what is dropped here cannot use such a journal.

Revision: 0100
"""

from __future__ import annotations

from alembic import op

revision = "0100"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("safety_label")
    op.drop_column("dual_step", "bias_allowance")
