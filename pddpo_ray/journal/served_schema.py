"""Tables of what clients of the endpoint gave to training, in the same database as the journal.

Nothing here is append-only: what a user sent can be withdrawn, and then no row holds it. `served_withdrawal` says that
a prompt was withdrawn, by its random name alone.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, ForeignKey, Index, Integer, String, Text

from pddpo_ray.journal.schema import table

served_prompt = table(
    "served_prompt",
    Column("run", String(200), ForeignKey("run.id"), primary_key=True),
    Column("id", String(64), primary_key=True),
    Column("key", String(100), nullable=False),
    Column("user", String(64), nullable=False),
    Column("messages", JSON, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index("ix_served_prompt_key", "run", "key"),
)
"""A conversation up to its last question, scrubbed. `id` is random, so that it says nothing of the text; `key` is the
name of the API key, `user` the hash of whom the application named with it."""

served_answer = table(
    "served_answer",
    Column("run", String(200), ForeignKey("run.id"), primary_key=True),
    Column("id", String(200), primary_key=True),
    Column("prompt", String(64), nullable=False),
    Column("text", Text, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("verdict", String(10)),
    Column("at_ms", BigInteger, nullable=False),
    Index("ix_served_answer_prompt", "run", "prompt"),
)
"""An answer that a client got to such a prompt, by the reply's own id; `verdict` is what its reader said: up, down or
unsafe."""

served_withdrawal = table(
    "served_withdrawal",
    Column("run", String(200), ForeignKey("run.id"), primary_key=True),
    Column("prompt", String(64), primary_key=True),
    Column("by", String(100), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
"""Prompts that are gone."""
