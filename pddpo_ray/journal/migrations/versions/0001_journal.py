"""The journal: runs, rounds, phases, versions, samples, labels, dual steps, deliveries, metrics.

Revision: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.Column("substance", sa.JSON(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
    )
    op.create_table(
        "delivery",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("engine", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("tensors", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("tokenizer", sa.String(length=64), nullable=False),
        sa.Column("proven", sa.Boolean(), nullable=False),
        sa.Column("canary_difference", sa.Float(), nullable=True),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name="fk_delivery_run"),
        sa.PrimaryKeyConstraint("id", name="pk_delivery"),
    )
    op.create_index("ix_delivery_run", "delivery", ["run", "round"], unique=False)
    op.create_table(
        "driver",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("token", sa.String(length=64), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("process_start", sa.String(length=64), nullable=False),
        sa.Column("seen_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name="fk_driver_run"),
        sa.PrimaryKeyConstraint("run", name="pk_driver"),
    )
    op.create_table(
        "dual_step",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("constraint", sa.String(length=100), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("standard_error", sa.Float(), nullable=False),
        sa.Column("responses", sa.Integer(), nullable=False),
        sa.Column("labels_each", sa.Integer(), nullable=False),
        sa.Column("mode", sa.String(length=50), nullable=False),
        sa.Column("multiplier_before", sa.Float(), nullable=False),
        sa.Column("multiplier_after", sa.Float(), nullable=False),
        sa.Column("eta", sa.Float(), nullable=False),
        sa.Column("bias_allowance", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name="fk_dual_step_run"),
        sa.PrimaryKeyConstraint("run", "round", "constraint", name="pk_dual_step"),
    )
    op.create_table(
        "metric",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name="fk_metric_run"),
        sa.PrimaryKeyConstraint("run", "round", "name", name="pk_metric"),
    )
    op.create_table(
        "phase",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=100), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("finished_ms", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name="fk_phase_run"),
        sa.PrimaryKeyConstraint("run", "round", "phase", name="pk_phase"),
    )
    op.create_table(
        "prompt",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("token_ids", sa.JSON(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name="fk_prompt_run"),
        sa.PrimaryKeyConstraint("run", "id", name="pk_prompt"),
    )
    op.create_table(
        "round",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("finished_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name="fk_round_run"),
        sa.PrimaryKeyConstraint("run", "round", name="pk_round"),
    )
    op.create_table(
        "version",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("stage", sa.String(length=20), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("base", sa.Integer(), nullable=True),
        sa.Column("multiplier", sa.Float(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("workers", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name="fk_version_run"),
        sa.PrimaryKeyConstraint("run", "number", name="pk_version"),
    )
    op.create_table(
        "sample",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("purpose", sa.String(length=50), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("prompt", sa.String(length=200), nullable=False),
        sa.Column("token_ids", sa.JSON(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("log_prob", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["run", "prompt"], ["prompt.run", "prompt.id"], name="fk_sample_run_prompt"),
        sa.PrimaryKeyConstraint("run", "id", name="pk_sample"),
    )
    op.create_index("ix_sample_round_purpose", "sample", ["run", "round", "purpose", "position"], unique=True)
    op.create_table(
        "pair",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("first", sa.String(length=200), nullable=False),
        sa.Column("second", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(["run", "first"], ["sample.run", "sample.id"], name="fk_pair_run_first"),
        sa.ForeignKeyConstraint(["run", "second"], ["sample.run", "sample.id"], name="fk_pair_run_second"),
        sa.PrimaryKeyConstraint("run", "id", name="pk_pair"),
    )
    op.create_index("ix_pair_round", "pair", ["run", "round", "position"], unique=True)
    op.create_table(
        "safety_label",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("sample", sa.String(length=200), nullable=False),
        sa.Column("constraint", sa.String(length=100), nullable=False),
        sa.Column("source", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("labeller", sa.String(length=200), nullable=False),
        sa.Column("label", sa.String(length=20), nullable=False),
        sa.ForeignKeyConstraint(["run", "sample"], ["sample.run", "sample.id"], name="fk_safety_label_run_sample"),
        sa.PrimaryKeyConstraint("run", "sample", "constraint", "source", name="pk_safety_label"),
    )
    op.create_index(
        "ix_safety_label_round", "safety_label", ["run", "round", "constraint", "position", "source"], unique=False
    )
    op.create_table(
        "pair_label",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("pair", sa.String(length=200), nullable=False),
        sa.Column("source", sa.Integer(), nullable=False),
        sa.Column("labeller", sa.String(length=200), nullable=False),
        sa.Column("helpful", sa.String(length=20), nullable=False),
        sa.Column("harmful", sa.String(length=20), nullable=False),
        sa.Column("further", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run", "pair"], ["pair.run", "pair.id"], name="fk_pair_label_run_pair"),
        sa.PrimaryKeyConstraint("run", "pair", "source", name="pk_pair_label"),
    )
