"""What is released now (`released_now`): a history that is only ever appended to, and what follows from replaying it.

A certificate releases the best certified policy; people release, and roll back, by hand. All of it is in the journal,
so a served endpoint follows a run by reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, insert, select

from pddpo_ray.certificates.certified import Certified, read_certified
from pddpo_ray.certificates.staging import Stage
from pddpo_ray.errors import UserError
from pddpo_ray.journal import JournalReader, VersionEntry
from pddpo_ray.journal.audit import record_event
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.rows import record_of
from pddpo_ray.journal.schema import release as release_table
from pddpo_ray.journal.schema import round_ as round_table
from pddpo_ray.journal.transactions import Store

RELEASE, ROLLBACK = "release", "rollback"
STAGE, UNSTAGE = "stage", "unstage"
RULE = "rule"
"""Who decided, where no person did: a certificate."""
ALARM = "alarm"
"""Who took a release back, where no person did: users' answers broke a limit."""
SCHEDULE = "schedule"
"""Who released a round, where a person began it in stages."""
MIN_HOURS, MAX_HOURS = 1 / 60, 24.0 * 90
UNRELEASED = "unreleased"


@dataclass(frozen=True)
class ReleaseEntry:
    """One line of the history; `round` of a rollback is the round that serves again, None if none does. `hours`: how
    long a staged release takes."""

    action: str
    round: int | None
    by: str
    reason: str
    at_ms: int
    hours: float | None = None


@dataclass(frozen=True)
class Released:
    """A history's outcome. `states` by round: released, staged, superseded or withdrawn; others are unreleased."""

    current: int | None = None
    """The released round."""
    earlier: tuple[int, ...] = ()
    """Rounds that a rollback goes back to, the nearest last."""
    states: Mapping[int, str] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    stands_in: bool = False
    """Whether an alarm has left nothing to serve, so that the reference stands in, also for a certified mixture."""
    stage: Stage | None = None
    """The release under way: a round that answers a growing share of the conversations."""
    by: str | None = None
    """Who released it: `rule` (a certificate did), `schedule`, or the name of a person."""
    reason: str = ""
    """Why; where the reference stands in, the reason of the alarm."""
    mixture: Certified | None = None
    """The certified mixture that is released because no round is."""

    def state(self, round_: int) -> str:
        return self.states.get(round_, UNRELEASED)


def released_now(
    history: Sequence[ReleaseEntry],
    certified: Sequence[Certified],
    weights: Mapping[int, str],
    *,
    mixture_max: int | None = None,
) -> Released:
    """What is released after this history.

    `weights` are the hashes of the finished rounds' policies. Where no round is released, it is the
    longest certified mixture of the last rounds with these weights, of at most `mixture_max` rounds; after an alarm it
    is nothing, and the reference stands in.
    """
    now = _replay(history)
    if now.current is not None:
        names = [line.by for line in history if line.action == RELEASE and line.round == now.current]
        return replace(now, by=names[-1], reason=now.reasons[now.current])
    if now.stands_in:
        return replace(now, reason=history[-1].reason)
    mixtures = [
        entry for entry in certified
        if len(entry.rounds) > 1 and entry.rounds[-1] == max(weights, default=0)
        and entry.sha256 == tuple(weights.get(number) for number in entry.rounds)
        and (mixture_max is None or len(entry.rounds) <= mixture_max)
    ]  # fmt: skip
    mixture = max(mixtures, key=lambda entry: len(entry.rounds), default=None)
    return now if mixture is None else replace(now, by=RULE, mixture=mixture)


def policies_of(journal: JournalReader) -> dict[int, VersionEntry]:
    """By finished round its policy, the last cost version of the round; 0 is the reference."""
    last = journal.next_round - 1
    return {
        0 if entry.stage == "reference" else entry.round: entry
        for entry in journal.versions()
        if entry.stage == "reference" or (entry.stage == "cost" and 0 < entry.round <= last)
    }


def _replay(history: Sequence[ReleaseEntry]) -> Released:
    """The state after these entries: a release is put on a stack, a rollback takes it off. A stage lasts until its
    round is taken back, or until anything is released or rolled back."""
    stack: list[int] = []
    states: dict[int, str] = {}
    reasons: dict[int, str] = {}
    stage: Stage | None = None
    for entry in history:
        if entry.action in (STAGE, UNSTAGE):
            assert entry.round is not None
            reasons[entry.round] = entry.reason
            if stage is not None:
                states[stage.round] = UNRELEASED
            if entry.action == STAGE:
                assert entry.hours is not None
                stage = Stage(entry.round, entry.at_ms, entry.hours)
            else:
                states[entry.round], stage = "withdrawn", None
                stack = [number for number in stack if number != entry.round]
            continue
        if stage is not None:
            states[stage.round], stage = UNRELEASED, None
        if entry.action == ROLLBACK:
            if stack:
                states[stack[-1]] = "withdrawn"
                reasons[stack.pop()] = entry.reason
        elif entry.round is not None:
            reasons[entry.round] = entry.reason
            stack = [*(number for number in stack if number != entry.round), entry.round]
        states |= dict.fromkeys(stack, "superseded")
        if stack:
            states[stack[-1]] = "released"
    if stage is not None:
        states[stage.round] = "staged"
    alarmed = bool(history) and history[-1].by == ALARM and not stack
    return Released(stack[-1] if stack else None, tuple(stack[:-1]), states, reasons, alarmed, stage)


class Releases:
    """The history of one run, and changes by hand."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def clock(self) -> int:
        """Now, in milliseconds since the epoch."""
        return self._store.clock()

    def history(self) -> list[ReleaseEntry]:
        with reading(self._store.engine) as connection:
            return self._history(connection)

    def now(self) -> Released:
        """`released_now` for this run."""
        history, journal = self.history(), JournalReader(self._store.engine, self._store.run)
        weights = {number: entry.version.sha256 for number, entry in policies_of(journal).items() if number}
        return released_now(history, read_certified(journal), weights)

    def release(
        self, round_: int, *, by: str, reason: str = "", force: bool = False, hours: float | None = None
    ) -> Released:
        """Releases a finished round, at once or over `hours`. One without a certificate needs `force`. Raises
        UserError."""
        certified = {entry.rounds for entry in read_certified(JournalReader(self._store.engine, self._store.run))}

        def add(connection: Connection) -> None:
            state = _replay(self._history(connection))
            self._demand_finished_round(connection, round_)
            if state.current == round_:
                raise UserError(f"round {round_} is the released one already")
            if (round_,) not in certified and not force:
                raise UserError(
                    f"the policy of round {round_} has no certificate: `pddpo certify RUN --policy round-{round_}`"
                    " tests it; with --force it is served all the same, marked as uncertified"
                )
            if hours is None:
                self._add(connection, RELEASE, round_, by, reason or "released by hand")
                return
            if state.current is None:
                raise UserError(
                    f"no round is released, so nobody could answer beside round {round_} while its share grows:"
                    " release it at once, without --over"
                )
            if not MIN_HOURS <= hours <= MAX_HOURS:
                raise UserError(f"a staged release takes from a minute to {MAX_HOURS:g} hours, not {hours:g} hours")
            self._add(connection, STAGE, round_, by, reason or "staged by hand", hours)

        self._store.write(add)
        return self.now()

    def finish_stage(self) -> bool:
        """Releases the staged round whose time is over; whether there was one. Safe to call from every entrance."""
        done = False

        def add(connection: Connection) -> None:
            nonlocal done
            stage = _replay(self._history(connection)).stage
            done = stage is not None and stage.whole_ms <= self._store.clock()
            if stage is not None and done:
                self._add(connection, RELEASE, stage.round, SCHEDULE, "its staged release is complete")

        self._store.write(add)
        return done

    def unstage(self, round_: int, *, by: str, reason: str) -> Released:
        """Stops a round's staged release. Does nothing if that round is not being staged."""

        def add(connection: Connection) -> None:
            stage = _replay(self._history(connection)).stage
            if stage is not None and stage.round == round_:
                self._add(connection, UNSTAGE, round_, by, reason)

        self._store.write(add)
        return self.now()

    def rollback(self, *, by: str, reason: str = "") -> Released:
        """Takes the released round back, or the one whose release is under way; the one before it serves again, if
        there is one. Raises UserError."""

        def add(connection: Connection) -> None:
            state = _replay(self._history(connection))
            if state.stage is not None:
                self._add(connection, UNSTAGE, state.stage.round, by, reason or "staged release stopped by hand")
                return
            if state.current is None:
                raise UserError("no round is released: there is nothing to roll back")
            back_to = state.earlier[-1] if state.earlier else None
            self._add(connection, ROLLBACK, back_to, by, reason or f"round {state.current} rolled back by hand")

        self._store.write(add)
        return self.now()

    def withdraw(self, round_: int | None, *, reason: str) -> Released:
        """What an alarm does: takes a release back (None: the mixture's), and goes back to the last certified round, or
        to the reference where there is none. Does nothing where something else is released by now."""
        certified = {entry.rounds for entry in read_certified(JournalReader(self._store.engine, self._store.run))}

        def add(connection: Connection) -> None:
            state = _replay(self._history(connection))
            if state.current != round_ or state.stands_in:
                return
            rounds = list(state.earlier)
            while rounds and (rounds[-1],) not in certified:
                self._add(connection, ROLLBACK, rounds.pop(), ALARM, reason)
            self._add(connection, ROLLBACK, rounds[-1] if rounds else None, ALARM, reason)

        self._store.write(add)
        return self.now()

    def _history(self, connection: Connection) -> list[ReleaseEntry]:
        # version 0.1 noted refusals too, which released nothing
        condition = (release_table.c.run == self._store.run) & (release_table.c.action != "refuse")
        rows = connection.execute(select(release_table).where(condition).order_by(release_table.c.id))
        return [record_of(ReleaseEntry, row) for row in rows]

    def _add(
        self, connection: Connection, action: str, round_: int | None, by: str, reason: str, hours: float | None = None
    ) -> None:
        at_ms = self._store.clock()
        row: dict[str, Any] = {"run": self._store.run, "action": action, "round": round_, "by": by, "hours": hours}
        connection.execute(insert(release_table).values(**row, reason=reason, at_ms=at_ms))
        record_event(connection, at_ms, by[:64], f"serving.{action}", self._store.run, round=round_, reason=reason)

    def _demand_finished_round(self, connection: Connection, round_: int) -> None:
        condition = (round_table.c.run == self._store.run) & round_table.c.finished_ms.is_not(None)
        numbers = sorted(connection.execute(select(round_table.c.round).where(condition)).scalars())
        if round_ not in numbers:
            rounds = f"rounds 1 to {numbers[-1]}" if numbers else "no round yet"
            raise UserError(f"round {round_} is not finished: this run has finished {rounds}")
