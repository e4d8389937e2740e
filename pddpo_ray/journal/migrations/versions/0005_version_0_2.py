"""From version 0.1 to 0.2: a run has an identity apart from its folder's name, knows where it lives and where it comes
from; a prompt keeps the messages that it was rendered from; columns and numbers have the names of today.

Revision: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from pddpo_ray.journal.lock import demand_idle

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

COMPARISON = "-offline"
SURE = "cost at most "


def upgrade() -> None:
    # Columns change their names, which software of version 0.1 does not survive.
    demand_idle(op.get_bind())
    with op.batch_alter_table("delivery") as delivery:
        delivery.alter_column("proven", new_column_name="verified")
    # Not in batch mode: other tables refer to this one, and SQLite renames a column in place.
    op.alter_column("run", "substance", new_column_name="fixed_settings")
    op.add_column("run", sa.Column("name", sa.String(length=200), nullable=False, server_default=""))
    op.add_column("run", sa.Column("part_of", sa.String(length=200), nullable=True))
    op.add_column("run", sa.Column("parent", sa.String(length=200), nullable=True))
    op.add_column("run", sa.Column("home", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("run", sa.Column("sittings", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("prompt", sa.Column("messages", sa.JSON(), nullable=False, server_default="[]"))
    connection = op.get_bind()
    run = sa.table("run", sa.column("id"), sa.column("name"), sa.column("part_of"))
    known = set(connection.execute(sa.select(run.c.id)).scalars())
    for name in known:
        whole = name.removesuffix(COMPARISON)
        part_of = whole if whole != name and whole in known else None
        connection.execute(sa.update(run).where(run.c.id == name).values(name=name, part_of=part_of))
    metric = sa.table("metric", sa.column("name"))
    connection.execute(
        sa.update(metric)
        .where(metric.c.name.like("exact/merit%"))
        .values(name=sa.func.replace(metric.c.name, "exact/merit", "exact/gap"))
    )
    # What a release rested on was called more certain than it is.
    release = sa.table("release", sa.column("id"), sa.column("reason"))
    for row in connection.execute(sa.select(release)).all():
        said = row.reason.replace(SURE, "estimated cost plus 1.64 standard errors is ")
        said = said.replace(" with 95 % confidence, limit ", ", within the limit ").replace(" with 95 % confidence", "")
        if said != row.reason:
            connection.execute(sa.update(release).where(release.c.id == row.id).values(reason=said))
