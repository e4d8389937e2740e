"""The annotation queue: people, rounds of questions, leases, answers, seats, snapshots, audit.

Revision: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

APPEND_ONLY = ("answer", "withdrawal", "snapshot", "audit_event")


def upgrade() -> None:
    op.create_table(
        "annotator",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("handle", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("token_prefix", sa.String(length=20), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("sees_harmful", sa.Boolean(), nullable=False),
        sa.Column("daily_cap", sa.Integer(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_annotator")),
        sa.UniqueConstraint("handle", name=op.f("uq_annotator_handle")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_annotator_token_sha256")),
    )
    op.create_table(
        "audit_event",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=60), nullable=False),
        sa.Column("object", sa.String(length=200), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("previous", sa.String(length=64), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_audit_event")),
        sa.UniqueConstraint("previous", name=op.f("uq_audit_event_previous")),
    )
    op.create_table(
        "campaign",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("fk_campaign_run")),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_campaign")),
    )
    op.create_table(
        "guideline",
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("markdown", sa.Text(), nullable=False),
        sa.Column("by", sa.String(length=64), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("fk_guideline_run")),
        sa.PrimaryKeyConstraint("run", "version", name=op.f("pk_guideline")),
    )
    op.create_table(
        "login",
        sa.Column("id_sha256", sa.String(length=64), nullable=False),
        sa.Column("annotator", sa.String(length=64), nullable=False),
        sa.Column("csrf", sa.String(length=64), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["annotator"], ["annotator.id"], name=op.f("fk_login_annotator")),
        sa.PrimaryKeyConstraint("id_sha256", name=op.f("pk_login")),
    )
    op.create_table(
        "question_round",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("run", sa.String(length=200), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("purpose", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("labels_each", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("opened_ms", sa.BigInteger(), nullable=False),
        sa.Column("deadline_ms", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("content_sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("fk_question_round_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_question_round")),
        sa.UniqueConstraint("run", "round", "purpose", name="uq_question_round_purpose"),
    )
    op.create_index("ix_question_round_state", "question_round", ["run", "state"], unique=False)
    op.create_table(
        "snapshot",
        sa.Column("question_round", sa.String(length=64), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["question_round"], ["question_round.id"], name=op.f("fk_snapshot_question_round")),
        sa.PrimaryKeyConstraint("question_round", name=op.f("pk_snapshot")),
    )
    op.create_table(
        "task",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("question_round", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("item", sa.String(length=200), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("first", sa.Text(), nullable=False),
        sa.Column("second", sa.Text(), nullable=True),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("risk", sa.Float(), nullable=False),
        sa.Column("priority", sa.Float(), nullable=False),
        sa.Column("gold", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("needed", sa.Integer(), nullable=False),
        sa.Column("seats", sa.Integer(), nullable=False),
        sa.Column("leased", sa.Integer(), nullable=False),
        sa.Column("refusals", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.CheckConstraint("seats >= 0 AND leased >= 0 AND seats + leased <= needed", name="ck_task_capacity"),
        sa.ForeignKeyConstraint(["question_round"], ["question_round.id"], name=op.f("fk_task_question_round")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_task")),
        sa.UniqueConstraint("id", "needed", name="uq_task_needed"),
        sa.UniqueConstraint("question_round", "position", name="uq_task_position"),
    )
    op.create_index("ix_task_state", "task", ["question_round", "state"], unique=False)
    op.create_table(
        "lease",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("task", sa.String(length=64), nullable=False),
        sa.Column("annotator", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("leased_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("swap", sa.Boolean(), nullable=False),
        sa.Column("guideline", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["annotator"], ["annotator.id"], name=op.f("fk_lease_annotator")),
        sa.ForeignKeyConstraint(["task"], ["task.id"], name=op.f("fk_lease_task")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lease")),
        sa.UniqueConstraint("task", "annotator", name="uq_lease_person"),
    )
    op.create_index("ix_lease_annotator", "lease", ["annotator", "state"], unique=False)
    op.create_index("ix_lease_expiry", "lease", ["state", "expires_ms"], unique=False)
    op.create_table(
        "answer",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("lease", sa.String(length=64), nullable=False),
        sa.Column("task", sa.String(length=64), nullable=False),
        sa.Column("annotator", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("given", sa.JSON(), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("ms_spent", sa.BigInteger(), nullable=False),
        sa.Column("revealed", sa.Boolean(), nullable=False),
        sa.Column("outcome", sa.String(length=20), nullable=False),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("guideline", sa.Integer(), nullable=False),
        sa.Column("swap", sa.Boolean(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["annotator"], ["annotator.id"], name=op.f("fk_answer_annotator")),
        sa.ForeignKeyConstraint(["lease"], ["lease.id"], name=op.f("fk_answer_lease")),
        sa.ForeignKeyConstraint(["task"], ["task.id"], name=op.f("fk_answer_task")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_answer")),
        sa.UniqueConstraint("key", name=op.f("uq_answer_key")),
    )
    op.create_index("ix_answer_annotator", "answer", ["annotator", "at_ms"], unique=False)
    op.create_index("ix_answer_task", "answer", ["task"], unique=False)
    op.create_table(
        "seat",
        sa.Column("task", sa.String(length=64), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("needed", sa.Integer(), nullable=False),
        sa.Column("annotator", sa.String(length=64), nullable=False),
        sa.Column("answer", sa.Integer(), nullable=False),
        sa.CheckConstraint("place >= 0 AND place < needed", name="ck_seat_place"),
        sa.ForeignKeyConstraint(["annotator"], ["annotator.id"], name=op.f("fk_seat_annotator")),
        sa.ForeignKeyConstraint(["answer"], ["answer.seq"], name=op.f("fk_seat_answer")),
        sa.ForeignKeyConstraint(["task", "needed"], ["task.id", "task.needed"], name="fk_seat_task_needed"),
        sa.PrimaryKeyConstraint("task", "place", name=op.f("pk_seat")),
        sa.UniqueConstraint("answer", name=op.f("uq_seat_answer")),
        sa.UniqueConstraint("task", "annotator", name="uq_seat_person"),
    )
    op.create_table(
        "withdrawal",
        sa.Column("answer", sa.Integer(), nullable=False),
        sa.Column("by", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["answer"], ["answer.seq"], name=op.f("fk_withdrawal_answer")),
        sa.PrimaryKeyConstraint("answer", name=op.f("pk_withdrawal")),
    )

    for table in APPEND_ONLY:
        _forbid_changes(table)


def _forbid_changes(table: str) -> None:
    """Rows of this table can be added, never changed or removed, whatever program asks."""
    if op.get_bind().dialect.name == "sqlite":
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table}"
                f" BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
        return
    op.execute(
        f"CREATE FUNCTION {table}_is_append_only() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE EXCEPTION '{table} is append-only'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE ON {table}"
        f" FOR EACH ROW EXECUTE FUNCTION {table}_is_append_only()"
    )
