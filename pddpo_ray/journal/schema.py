"""Tables of the journal: the only truth about a run, what it released, and who may call its endpoint.

Every row carries its run, so one database holds many runs. Times are UTC milliseconds. Rows of `phase`, `sample`,
`measurement`, `pair`, `pair_label`, `dual_step`, `version` and `release` are written once and never changed, but for
what a user of the endpoint takes back (`journal.withdrawing`).
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.schema import SchemaItem

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = MetaData(naming_convention=NAMING)


def table(name: str, *content: SchemaItem) -> Table:
    return Table(name, metadata, *content)


def _keyed_by_run(name: str, *content: SchemaItem) -> Table:
    """A table whose key begins with the run."""
    return table(name, Column("run", String(200), primary_key=True), *content)


def _of_run(name: str, *content: SchemaItem) -> Table:
    """And the run must be in table `run`."""
    return _keyed_by_run(name, *content, ForeignKeyConstraint(["run"], ["run.id"]))


run = table(
    "run",
    Column("id", String(200), primary_key=True),
    Column("recipe", JSON, nullable=False),
    Column("fixed_settings", JSON, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("name", String(200), nullable=False, default=""),
    Column("part_of", String(200)),
    Column("parent", String(200)),
    Column("home", JSON(none_as_null=True)),
    Column("sittings", JSON, nullable=False, default=list),
)
"""`id` is the run's identity and `name` what its folder was called first. `part_of`: the run that this one is compared
with. `parent`: the run that it was copied from. `home` is where it lives, `sittings` the processes that drove it."""

driver = _of_run(
    "driver",
    Column("token", String(64), nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("process_start", String(64), nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
)
"""Who drives the run now: at most one row a run, removed when the driver leaves."""

round_ = _of_run(
    "round",
    Column("round", Integer, primary_key=True),
    Column("started_ms", BigInteger, nullable=False),
    Column("finished_ms", BigInteger),
)

phase = _of_run(
    "phase",
    Column("round", Integer, primary_key=True),
    Column("phase", String(100), primary_key=True),
    Column("started_ms", BigInteger, nullable=False),
    Column("finished_ms", BigInteger, nullable=False),
    Column("payload", JSON, nullable=False),
)
"""Finished phases only: a phase that has no row is done again."""

version = _of_run(
    "version",
    Column("number", Integer, primary_key=True),
    Column("name", String(200), nullable=False, default=""),
    Column("round", Integer, nullable=False),
    Column("stage", String(20), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("path", Text, nullable=False),
    Column("base", Integer),
    Column("multiplier", Float),
    Column("metrics", JSON, nullable=False),
    Column("workers", JSON, nullable=False),
)

prompt = _of_run(
    "prompt",
    Column("id", String(200), primary_key=True),
    Column("token_ids", JSON, nullable=False),
    Column("text", Text, nullable=False),
    Column("messages", JSON, nullable=False, default=list),
)
"""`text` is what people and judges are shown; `messages` the turns [role, content], none in worlds made here."""

sample = _keyed_by_run(
    "sample",
    Column("id", String(200), primary_key=True),
    Column("round", Integer, nullable=False),
    Column("purpose", String(50), nullable=False),
    Column("position", Integer, nullable=False),
    Column("prompt", String(200), nullable=False),
    Column("token_ids", JSON, nullable=False),
    Column("text", Text, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("log_prob", Float),
    ForeignKeyConstraint(["run", "prompt"], ["prompt.run", "prompt.id"]),
    Index("ix_sample_round_purpose", "run", "round", "purpose", "position", unique=True),
)

measurement = _keyed_by_run(
    "measurement",
    Column("sample", String(200), primary_key=True),
    Column("limit", String(100), primary_key=True),
    Column("phase", String(100), primary_key=True),
    Column("opinion", Integer, primary_key=True),
    Column("round", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("source", String(200), nullable=False),
    Column("person", String(200)),
    Column("value", Float),
    Column("missing", Text, nullable=False),
    Column("chance", Float),
    Column("against", Float),
    Column("at_ms", BigInteger, nullable=False),
    ForeignKeyConstraint(["run", "sample"], ["sample.run", "sample.id"]),
    Index("ix_measurement_round", "run", "round", "phase", "limit", "position", "opinion"),
)
"""Every measurement under a limit, by people or machines: `records.Measurement`. `phase` says what it was for."""

pair = _keyed_by_run(
    "pair",
    Column("id", String(200), primary_key=True),
    Column("round", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("first", String(200), nullable=False),
    Column("second", String(200), nullable=False),
    ForeignKeyConstraint(["run", "first"], ["sample.run", "sample.id"]),
    ForeignKeyConstraint(["run", "second"], ["sample.run", "sample.id"]),
    Index("ix_pair_round", "run", "round", "position", unique=True),
)

pair_label = _keyed_by_run(
    "pair_label",
    Column("pair", String(200), primary_key=True),
    Column("source", Integer, primary_key=True),
    Column("labeller", String(200), nullable=False),
    Column("helpful", String(20), nullable=False),
    Column("harmful", String(20), nullable=False),
    Column("further", JSON, nullable=False),
    ForeignKeyConstraint(["run", "pair"], ["pair.run", "pair.id"]),
)

dual_step = _of_run(
    "dual_step",
    Column("round", Integer, primary_key=True),
    Column("constraint", String(100), primary_key=True),
    Column("value", Float, nullable=False),
    Column("standard_error", Float, nullable=False),
    Column("responses", Integer, nullable=False),
    Column("labels_each", Integer, nullable=False),
    Column("mode", String(50), nullable=False),
    Column("multiplier_before", Float, nullable=False),
    Column("multiplier_after", Float, nullable=False),
    Column("eta", Float, nullable=False),
    Column("missing", Float, nullable=False, server_default="0"),
    Column("low", Float),
    Column("high", Float),
)

delivery = table(
    "delivery",
    Column("id", Integer, primary_key=True),
    Column("run", String(200), nullable=False),
    Column("round", Integer, nullable=False),
    Column("engine", String(200), nullable=False),
    Column("version", Integer, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("tensors", Integer, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("tokenizer", String(64), nullable=False),
    Column("verified", Boolean, nullable=False),
    Column("canary_difference", Float),
    Column("at_ms", BigInteger, nullable=False),
    ForeignKeyConstraint(["run"], ["run.id"]),
    Index("ix_delivery_run", "run", "round"),
)
"""Every hand-over that happened, repeated ones after a restart too."""

metric = _of_run(
    "metric",
    Column("round", Integer, primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("value", Float),
)
"""A missing value is a number that does not exist (not a number); it never reads back as zero."""


release = table(
    "release",
    Column("id", Integer, primary_key=True),
    Column("run", String(200), ForeignKey("run.id"), nullable=False),
    Column("action", String(20), nullable=False),
    Column("round", Integer),
    Column("by", String(100), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("hours", Float),
    Index("ix_release_run", "run", "id"),
)
"""`action` is release, stage, unstage, refuse or rollback; `round` is the one it speaks of, for a rollback the one that
serves again (none: nothing is released any more). `hours`: how long a stage takes until it is a release."""

api_key = table(
    "api_key",
    Column("run", String(200), ForeignKey("run.id"), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("key_sha256", String(64), nullable=False, unique=True),
    Column("key_prefix", String(20), nullable=False),
    Column("scope", String(20), nullable=False),
    Column("requests_per_minute", Float, nullable=False),
    Column("tokens_per_minute", Float, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
    Column("expires_ms", BigInteger),
    Column("consented", Boolean, nullable=False, server_default=text("false")),
)
"""Keys of the served endpoint; only hashes are stored. `consented`: its user agreed that training may learn
from what they send."""
