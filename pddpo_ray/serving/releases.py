"""Which round is released: a history that is only ever appended to, and what follows from replaying it.

A certificate releases the best certified policy; people release, and roll back, by hand. All of it is in the journal,
so a served endpoint follows a run by reading. Histories of version 0.1 hold refusals too, one for every round whose
estimate was too high.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, insert, select

from pddpo_ray.errors import UserError
from pddpo_ray.journal import JournalReader
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.rows import record_of
from pddpo_ray.journal.schema import release as release_table
from pddpo_ray.journal.schema import round_ as round_table
from pddpo_ray.journal.transactions import Store
from pddpo_ray.serving.certified import read_certified

RELEASE, REFUSE, ROLLBACK = "release", "refuse", "rollback"
RULE = "rule"
"""Who decided, where no person did: a certificate."""
ALARM = "alarm"
"""Who took a release back, where no person did: answers that people got break a limit."""
UNRELEASED = "unreleased"


@dataclass(frozen=True)
class ReleaseEntry:
    """One line of the history; `round` of a rollback is the round that serves again, None if none does."""

    action: str
    round: int | None
    by: str
    reason: str
    at_ms: int


@dataclass(frozen=True)
class Released:
    """What a history comes to. `states` by round: released, superseded, withdrawn or refused; others are unreleased."""

    current: int | None = None
    earlier: tuple[int, ...] = ()
    """Rounds that a rollback goes back to, the nearest last."""
    states: Mapping[int, str] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    stands_in: bool = False
    """Whether an alarm has left nothing to serve, so that the reference stands in, also for a certified mixture."""

    def state(self, round_: int) -> str:
        return self.states.get(round_, UNRELEASED)


def replay(history: Sequence[ReleaseEntry]) -> Released:
    """The state after these entries: a release goes on a stack, a rollback takes it off, a refusal changes no other."""
    stack: list[int] = []
    states: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for entry in history:
        if entry.action == ROLLBACK:
            if stack:
                states[stack[-1]] = "withdrawn"
                reasons[stack.pop()] = entry.reason
        elif entry.round is not None:
            reasons[entry.round] = entry.reason
            if entry.action == REFUSE:
                states[entry.round] = "refused"
            else:
                stack = [*(number for number in stack if number != entry.round), entry.round]
        states |= dict.fromkeys(stack, "superseded")
        if stack:
            states[stack[-1]] = "released"
    alarmed = bool(history) and history[-1].by == ALARM and not stack
    return Released(stack[-1] if stack else None, tuple(stack[:-1]), states, reasons, alarmed)


class Releases:
    """The history of one run, and changes by hand."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def history(self) -> list[ReleaseEntry]:
        with reading(self._store.engine) as connection:
            return self._history(connection)

    def now(self) -> Released:
        return replay(self.history())

    def release(self, round_: int, *, by: str, reason: str = "", force: bool = False) -> Released:
        """Releases a finished round. One without a certificate needs `force`. Raises UserError."""
        certified = {one.rounds for one in read_certified(JournalReader(self._store.engine, self._store.run))}

        def add(connection: Connection) -> None:
            state = replay(self._history(connection))
            self._demand_finished(connection, round_)
            if state.current == round_:
                raise UserError(f"round {round_} is the released one already")
            if (round_,) not in certified and not force:
                raise UserError(
                    f"the policy of round {round_} has no certificate: `pddpo certify RUN --policy round-{round_}`"
                    " tests it; with --force it is served all the same, marked as uncertified"
                )
            self._add(connection, RELEASE, round_, by, reason or "released by hand")

        self._store.write(add)
        return self.now()

    def rollback(self, *, by: str, reason: str = "") -> Released:
        """Takes the released round back; the one before it serves again, if there is one. Raises UserError."""

        def add(connection: Connection) -> None:
            state = replay(self._history(connection))
            if state.current is None:
                raise UserError("no round is released: there is nothing to roll back")
            back_to = state.earlier[-1] if state.earlier else None
            self._add(connection, ROLLBACK, back_to, by, reason or f"round {state.current} rolled back by hand")

        self._store.write(add)
        return self.now()

    def withdraw(self, round_: int | None, *, reason: str) -> Released:
        """What an alarm does: takes a release back (None: the mixture's), and goes back to the last certified round, or
        to the reference where there is none. Does nothing where something else is released by now."""
        certified = {one.rounds for one in read_certified(JournalReader(self._store.engine, self._store.run))}

        def add(connection: Connection) -> None:
            state = replay(self._history(connection))
            if state.current != round_ or state.stands_in:
                return
            left = list(state.earlier)
            while left and (left[-1],) not in certified:
                self._add(connection, ROLLBACK, left.pop(), ALARM, reason)
            self._add(connection, ROLLBACK, left[-1] if left else None, ALARM, reason)

        self._store.write(add)
        return self.now()

    def _history(self, connection: Connection) -> list[ReleaseEntry]:
        mine = release_table.c.run == self._store.run
        rows = connection.execute(select(release_table).where(mine).order_by(release_table.c.id))
        return [record_of(ReleaseEntry, row) for row in rows]

    def _add(self, connection: Connection, action: str, round_: int | None, by: str, reason: str) -> None:
        at_ms = self._store.clock()
        row: dict[str, Any] = {"run": self._store.run, "action": action, "round": round_, "by": by}
        connection.execute(insert(release_table).values(**row, reason=reason, at_ms=at_ms))
        record_event(connection, at_ms, by[:64], f"serving.{action}", self._store.run, round=round_, reason=reason)

    def _demand_finished(self, connection: Connection, round_: int) -> None:
        mine = (round_table.c.run == self._store.run) & round_table.c.finished_ms.is_not(None)
        numbers = sorted(connection.execute(select(round_table.c.round).where(mine)).scalars())
        if round_ not in numbers:
            known = f"rounds 1 to {numbers[-1]}" if numbers else "no round yet"
            raise UserError(f"round {round_} is not finished: this run has finished {known}")
