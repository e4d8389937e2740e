"""Tables of the annotation queue, in the same database as the journal. Times are UTC milliseconds.

`answer`, `withdrawal`, `snapshot`, `adjudication` and `audit_event` are append-only, held by triggers; only what a
person wrote or was called can be emptied (`ERASABLE`). Who counts is a row of `seat`: its keys make "at most `needed`
people, all distinct" a rule of the database and not only of the program.
"""

from __future__ import annotations

from sqlalchemy import (
    DDL,
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
    event,
    text,
)

from pddpo_ray.journal.schema import table

annotator = table(
    "annotator",
    Column("id", String(64), primary_key=True),
    Column("handle", String(100), nullable=False, unique=True),
    Column("role", String(20), nullable=False),
    Column("token_sha256", String(64), nullable=False, unique=True),
    Column("token_prefix", String(20), nullable=False),
    Column("active", Boolean, nullable=False),
    Column("sees_harmful", Boolean, nullable=False),
    Column("daily_cap", Integer, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("held", Boolean, nullable=False, server_default=text("false")),
    Column("harmful_cap", Integer, nullable=False, server_default=text("150")),
    Column("languages", String(200), nullable=False, server_default=""),
    Column("hourly_rate", Float),
)
"""`languages`: codes with commas between, none for who did not say; they are asked in every language. `held`: a lead
looks at the person's answers, which count no more until then. `harmful_cap`: the most answers a person calls unsafe
in a day are enough; after them come mild questions alone. `hourly_rate`: pay per hour, null where the default
given when the work is saved applies.

People and the trainer's service token. Pseudonymous: a handle and the hash of a random token."""

login = table(
    "login",
    Column("id_sha256", String(64), primary_key=True),
    Column("annotator", String(64), ForeignKey("annotator.id"), nullable=False),
    Column("csrf", String(64), nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
)

consent = table(
    "consent",
    Column("annotator", String(64), ForeignKey("annotator.id"), primary_key=True),
    Column("version", String(64), primary_key=True),
    Column("text", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
"""Who agreed to which text before their first question."""

invitation = table(
    "invitation",
    Column("code_sha256", String(64), primary_key=True),
    Column("handle", String(100), nullable=False),
    Column("role", String(20), nullable=False),
    Column("sees_harmful", Boolean, nullable=False),
    Column("daily_cap", Integer, nullable=False),
    Column("by", String(64), nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("used_ms", BigInteger),
    Column("harmful_cap", Integer, nullable=False, server_default=text("150")),
    Column("languages", String(200), nullable=False, server_default=""),
)
"""Links that make one account each."""

adjudication = table(
    "adjudication",
    Column("seq", Integer, primary_key=True),
    Column("task", String(64), ForeignKey("task.id"), nullable=False),
    Column("given", JSON, nullable=False),
    Column("by", String(64), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index("ix_adjudication_task", "task"),
)
"""What a lead decided where people differ about a pair; the newest stands."""

campaign = table(
    "campaign",
    Column("run", String(200), ForeignKey("run.id"), primary_key=True),
    Column("paused", Boolean, nullable=False),
)

guideline = table(
    "guideline",
    Column("run", String(200), ForeignKey("run.id"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("markdown", Text, nullable=False),
    Column("by", String(64), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)

question_round = table(
    "question_round",
    Column("id", String(64), primary_key=True),
    Column("run", String(200), ForeignKey("run.id"), nullable=False),
    Column("round", Integer, nullable=False),
    Column("purpose", String(100), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("labels_each", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("deadline_ms", BigInteger),
    Column("waits_s", Float),
    Column("state", String(20), nullable=False),
    Column("content_sha256", String(64), nullable=False),
    UniqueConstraint("run", "round", "purpose", name="uq_question_round_purpose"),
    Index("ix_question_round_state", "run", "state"),
)
"""One batch of questions of a round of the run. `state` is open, frozen or cancelled; `waits_s` is how long its run
waits by its recipe, null in batches of earlier versions."""

BALANCE = "CASE WHEN state = 'open' AND gold IS NULL THEN seats + leased - needed ELSE 0 END"
"""Below zero by as many people as can still be asked, so that an index read backwards has the most urgent one first.

A column, since SQLite uses no index over the expression, and a stored one, since PostgreSQL indexes no other.
"""

task = table(
    "task",
    Column("id", String(64), primary_key=True),
    Column("question_round", String(64), ForeignKey("question_round.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("item", String(200), nullable=False),
    Column("prompt", Text, nullable=False),
    Column("first", Text, nullable=False),
    Column("second", Text),
    Column("provenance", JSON, nullable=False),
    Column("risk", Float, nullable=False),
    Column("priority", Float, nullable=False),
    Column("gold", JSON(none_as_null=True)),
    Column("asks", Text),
    Column("language", String(8)),
    Column("turns", JSON(none_as_null=True)),
    Column("low", Float),
    Column("high", Float),
    Column("needed", Integer, nullable=False),
    Column("seats", Integer, nullable=False),
    Column("leased", Integer, nullable=False),
    Column("refusals", Integer, nullable=False),
    Column("state", String(20), nullable=False),
    Column("balance", Integer, Computed(BALANCE, persisted=True)),
    UniqueConstraint("question_round", "position", name="uq_task_position"),
    UniqueConstraint("id", "needed", name="uq_task_needed"),
    CheckConstraint("seats >= 0 AND leased >= 0 AND seats + leased <= needed", name="ck_task_capacity"),
    Index("ix_task_state", "question_round", "state"),
    Index("ix_task_offer", "question_round", "balance", "priority", "id", "risk", "language"),
)
"""One question; `asks` is its text where a limit has one of its own, `low` and `high` bound a number, `language` is the
code of the language that one has to know for it (null: all people are asked), `turns` the role and text of each turn
where its prompt is a conversation. `seats` and `leased` count rows of the tables below; `state` is open, satisfied,
blocked or dropped (it is asked no more, and its batch does without the labels that it lacks).

`ix_task_offer`, read backwards, has the questions in the order in which they are offered, with all that the choice
asks of them.
"""

lease = table(
    "lease",
    Column("id", String(64), primary_key=True),
    Column("task", String(64), ForeignKey("task.id"), nullable=False),
    Column("annotator", String(64), ForeignKey("annotator.id"), nullable=False),
    Column("state", String(20), nullable=False),
    Column("leased_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("swap", Boolean, nullable=False),
    Column("guideline", Integer, nullable=False),
    UniqueConstraint("task", "annotator", name="uq_lease_person"),
    Index("ix_lease_expiry", "state", "expires_ms"),
    Index("ix_lease_annotator", "annotator", "state"),
)
"""A question in one person's hands, in one screen order. `state` is leased, expired, released or answered."""

answer = table(
    "answer",
    Column("seq", Integer, primary_key=True),
    Column("key", String(64), nullable=False, unique=True),
    Column("lease", String(64), ForeignKey("lease.id"), nullable=False),
    Column("task", String(64), ForeignKey("task.id"), nullable=False),
    Column("annotator", String(64), ForeignKey("annotator.id"), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("given", JSON, nullable=False),
    Column("reason", String(40), nullable=False),
    Column("note", Text, nullable=False),
    Column("ms_spent", BigInteger, nullable=False),
    Column("revealed", Boolean, nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("late", Boolean, nullable=False),
    Column("guideline", Integer, nullable=False),
    Column("swap", Boolean, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index("ix_answer_task", "task"),
    Index("ix_answer_annotator", "annotator", "at_ms"),
)
"""Everything a person said, never changed: `kind` is label, abstain, skip or flag; sides are first and second, not
left and right. `outcome` is what was decided then: counted, surplus or refused; a row of `seat` says who counts now."""

seat = table(
    "seat",
    Column("task", String(64), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("needed", Integer, nullable=False),
    Column("annotator", String(64), ForeignKey("annotator.id"), nullable=False),
    Column("answer", Integer, ForeignKey("answer.seq"), nullable=False, unique=True),
    ForeignKeyConstraint(["task", "needed"], ["task.id", "task.needed"], name="fk_seat_task_needed"),
    UniqueConstraint("task", "annotator", name="uq_seat_person"),
    CheckConstraint("number >= 0 AND number < needed", name="ck_seat_number"),
)

withdrawal = table(
    "withdrawal",
    Column("answer", Integer, ForeignKey("answer.seq"), primary_key=True),
    Column("by", String(64), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
"""Answers taken back: `kind` is undo (by the person) or void (by an admin)."""

snapshot = table(
    "snapshot",
    Column("question_round", String(64), ForeignKey("question_round.id"), primary_key=True),
    Column("content", JSON, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
"""What a frozen round decided: the only thing that the trainer reads."""

audit_event = table(
    "audit_event",
    Column("seq", Integer, primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", String(64), nullable=False),
    Column("action", String(60), nullable=False),
    Column("object", String(200), nullable=False),
    Column("data", JSON, nullable=False),
    Column("previous", String(64), nullable=False, unique=True),
    Column("sha256", String(64), nullable=False),
)
"""Who changed people, guidelines, rounds and labels. Each row hashes the one before, so a gap shows."""

APPEND_ONLY = (answer, withdrawal, snapshot, audit_event, adjudication)


ERASED = {"erased": True}
"""What is left of the data of an audit event that named a person."""
ERASABLE = {
    "answer": {"note": "''"},
    "audit_event": {"object": "''", "data": "'{\"erased\": true}'"},
}
"""The one change that an append-only row allows: all of these columns at once, to these values."""


def append_only(table: Table, dialect: str) -> list[str]:
    """Statements after which rows of this table can be added, and never changed (but for `ERASABLE`) or removed,
    whatever program asks."""
    name = table.name
    emptied, columns = ERASABLE.get(name, {}), [column.name for column in table.columns]
    columns = [column for column in columns if column not in emptied]
    if dialect == "sqlite":
        same = [f"NEW.{column} IS OLD.{column}" for column in columns]
        same += [f"NEW.{column} = {value}" for column, value in emptied.items()]
        unless = {"update": f" WHEN NOT ({' AND '.join(same)})" if emptied else "", "delete": ""}
        return [
            f"CREATE TRIGGER {name}_no_{change} BEFORE {change.upper()} ON {name}{unless[change]}"
            f" BEGIN SELECT RAISE(ABORT, '{name} is append-only'); END"
            for change in unless
        ]
    same = [f"NEW.{column}::text IS NOT DISTINCT FROM OLD.{column}::text" for column in columns]
    same += [f"NEW.{column}::text = {value}" for column, value in emptied.items()]
    allowed = f" IF TG_OP = 'UPDATE' AND {' AND '.join(same)} THEN RETURN NEW; END IF;" if emptied else ""
    return [
        f"CREATE FUNCTION {name}_is_append_only() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN{allowed} RAISE EXCEPTION '{name} is append-only'; END $$",
        f"CREATE TRIGGER {name}_no_change BEFORE UPDATE OR DELETE ON {name}"
        f" FOR EACH ROW EXECUTE FUNCTION {name}_is_append_only()",
    ]


for _table in APPEND_ONLY:
    for _dialect in ("sqlite", "postgresql"):
        for _statement in append_only(_table, _dialect):
            event.listen(_table, "after_create", DDL(_statement).execute_if(dialect=_dialect))
