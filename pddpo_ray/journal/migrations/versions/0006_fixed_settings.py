"""Settings that a resumed run must share are called so.

Revision: 0006
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Not in batch mode: other tables refer to this one, and SQLite renames a column in place.
    op.alter_column("run", "substance", new_column_name="fixed_settings")
