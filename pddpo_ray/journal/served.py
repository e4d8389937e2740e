"""What clients of the endpoint gave to training: kept within caps, judged by its readers, read by the next rounds.

Nobody writes here but an endpoint whose operator opted in, and only what its sender consented to.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Engine, func, insert, select, update

from pddpo_ray.journal.database import reading
from pddpo_ray.journal.served_schema import served_answer, served_prompt, served_withdrawal
from pddpo_ray.journal.transactions import Store
from pddpo_ray.records import Message

PREFIX = "served-"
"""Begins the names of prompts that clients gave."""
UserVerdict = Literal["up", "down", "unsafe"]
Outcome = Literal["kept", "full", "key-full"]


@dataclass(frozen=True)
class Caps:
    """The most prompts that are kept, of one key and of all."""

    per_key: int
    total: int


@dataclass(frozen=True)
class Sent:
    """One exchange as it may be kept: scrubbed, its prompt in turns, its answer by the reply's id."""

    key: str
    user: str
    """Whom the application named with it; empty: nobody."""
    messages: tuple[Message, ...]
    reply: str
    answer: str
    policy_version: int


@dataclass(frozen=True)
class KeptAnswer:
    """An answer that a client got; `verdict` is its reader's, None: nothing was said."""

    id: str
    text: str
    policy_version: int
    verdict: UserVerdict | None


@dataclass(frozen=True)
class KeptPrompt:
    """A prompt that a client gave, with the answers that it got."""

    id: str
    messages: tuple[Message, ...]
    answers: tuple[KeptAnswer, ...]


def user_hash(run: str, key: str, user: str) -> str:
    """Hash of an application's user: finds what they sent, while the name itself is not stored."""
    return hashlib.sha256(f"{run}\0{key}\0{user}".encode()).hexdigest()


def keep(store: Store, sent: Sent, caps: Caps) -> Outcome:
    """Stores an exchange. The same prompt of the same user is kept once, with all its answers."""
    table, user = served_prompt, user_hash(store.run, sent.key, sent.user)
    turns = [[message.role, message.content] for message in sent.messages]

    def add(connection: Connection) -> Outcome:
        of_key = (table.c.run == store.run) & (table.c.key == sent.key)
        rows = connection.execute(select(table.c.id, table.c.messages).where(of_key, table.c.user == user)).all()
        name = next((row.id for row in rows if row.messages == turns), None)
        if name is None:
            count = select(func.count()).select_from(table)
            if (connection.execute(count.where(table.c.run == store.run)).scalar() or 0) >= caps.total:
                return "full"
            if (connection.execute(count.where(of_key)).scalar() or 0) >= caps.per_key:
                return "key-full"
            name = PREFIX + secrets.token_hex(12)
            row = {"run": store.run, "id": name, "key": sent.key, "user": user, "messages": turns}
            connection.execute(insert(table).values(**row, at_ms=store.clock()))
        answer = {"run": store.run, "id": sent.reply, "prompt": name, "text": sent.answer, "at_ms": store.clock()}
        connection.execute(insert(served_answer).values(**answer, policy_version=sent.policy_version))
        return "kept"

    return store.write(add)


def judge(store: Store, reply: str, verdict: UserVerdict) -> bool:
    """Stores a reader's verdict on an answer, in place of an earlier one. -> whether the answer is kept"""
    of_reply = (served_answer.c.run == store.run) & (served_answer.c.id == reply)
    return store.write(
        lambda connection: (
            connection.execute(update(served_answer).where(of_reply).values(verdict=verdict)).rowcount > 0
        )
    )


def kept_prompts(engine: Engine, run: str) -> list[KeptPrompt]:
    """Everything that is kept now, in the order in which it came."""
    prompt, answer = served_prompt, served_answer
    with reading(engine) as connection:
        prompts = connection.execute(
            select(prompt).where(prompt.c.run == run).order_by(prompt.c.at_ms, prompt.c.id)
        ).all()
        answers: dict[str, list[Any]] = {}
        for row in connection.execute(select(answer).where(answer.c.run == run).order_by(answer.c.at_ms, answer.c.id)):
            answers.setdefault(row.prompt, []).append(row)
    return [
        KeptPrompt(
            row.id,
            tuple(Message(role, content) for role, content in row.messages),
            tuple(
                KeptAnswer(reply.id, reply.text, reply.policy_version, reply.verdict)
                for reply in answers.get(row.id, ())
            ),
        )
        for row in prompts
    ]


def withdrawn_prompts(engine: Engine, run: str) -> frozenset[str]:
    """Names of the prompts that their senders took back."""
    query = select(served_withdrawal.c.prompt).where(served_withdrawal.c.run == run)
    with reading(engine) as connection:
        return frozenset(connection.execute(query).scalars())


def prompts_of(engine: Engine, run: str, *, reply: str = "", key: str = "", user: str = "") -> Sequence[str]:
    """Names of the kept prompts of a reply, or of a key, or of a user of a key."""
    table = served_prompt
    query = select(table.c.id).where(table.c.run == run)
    if reply:
        prompt_ids = select(served_answer.c.prompt).where(served_answer.c.run == run, served_answer.c.id == reply)
        query = query.where(table.c.id.in_(prompt_ids))
    if key:
        query = query.where(table.c.key == key)
    if user:
        query = query.where(table.c.user == user_hash(run, key, user))
    with reading(engine) as connection:
        return list(connection.execute(query).scalars())
