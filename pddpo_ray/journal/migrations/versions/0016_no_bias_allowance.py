"""An estimate no longer keeps a plug-in size of its bias, which nothing read: its interval has the worst bias.

Revision: 0016
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_column("dual_step", "bias_allowance")
