"""One record for what people and machines measure of an answer; labels of versions up to 0.2 are copied into it.

Revision: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "measurement",
        *(sa.Column(name, sa.String(200), nullable=False) for name in ("run", "sample")),
        sa.Column("limit", sa.String(100), nullable=False),
        sa.Column("phase", sa.String(100), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("opinion", "round")),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("position", "policy_version")),
        sa.Column("source", sa.String(200), nullable=False),
        sa.Column("person", sa.String(200)),
        sa.Column("value", sa.Float()),
        sa.Column("missing", sa.Text(), nullable=False),
        sa.Column("chance", sa.Float()),
        sa.Column("against", sa.Float()),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run", "sample", "limit", "phase", "opinion", name="pk_measurement"),
        sa.ForeignKeyConstraint(["run", "sample"], ["sample.run", "sample.id"], name="fk_measurement_run_sample"),
    )
    of_round = ["run", "round", "phase", "limit", "position", "opinion"]
    op.create_index("ix_measurement_round", "measurement", of_round)
    op.execute(
        """INSERT INTO measurement (run, sample, "limit", opinion, round, phase, position, policy_version, source,
                                    value, missing, at_ms)
           SELECT run, sample, "constraint", source, round, 'safety', position, policy_version, labeller,
                  CASE label WHEN 'unsafe' THEN 1.0 WHEN 'safe' THEN 0.0 END,
                  CASE WHEN label IN ('safe', 'unsafe') THEN '' ELSE label END, 0
           FROM safety_label"""
    )
