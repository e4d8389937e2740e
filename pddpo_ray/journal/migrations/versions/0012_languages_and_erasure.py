"""People and questions have languages, prompts have turns, and what a person wrote or was called can be emptied.

Revision: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pddpo_ray.journal.annotation_schema import ERASABLE, append_only
from pddpo_ray.journal.schema import metadata

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("annotator", "invitation"):
        op.add_column(table, sa.Column("languages", sa.String(200), nullable=False, server_default=""))
    op.add_column("invitation", sa.Column("harmful_cap", sa.Integer(), nullable=False, server_default=sa.text("150")))
    op.add_column("task", sa.Column("language", sa.String(8), nullable=True))
    op.add_column("task", sa.Column("turns", sa.JSON(none_as_null=True), nullable=True))
    op.drop_index("ix_task_offer", "task")
    op.create_index("ix_task_offer", "task", ["question_round", "balance", "priority", "id", "risk", "language"])
    dialect = op.get_bind().dialect.name
    for name in ERASABLE:
        for statement in _without(name, dialect) + append_only(metadata.tables[name], dialect):
            op.execute(sa.DDL(statement))


def _without(name: str, dialect: str) -> list[str]:
    """Drops the triggers of an append-only table."""
    if dialect == "sqlite":
        return [f"DROP TRIGGER {name}_no_{change}" for change in ("update", "delete")]
    return [f"DROP TRIGGER {name}_no_change ON {name}", f"DROP FUNCTION {name}_is_append_only()"]
