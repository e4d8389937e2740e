"""What a lead may decide about a batch of questions, and where each decision leads: a state machine without dead ends.

    waiting ──(deadline)──► overdue          the run waits, or has ended and asks for a decision
       │  extend ◄─────────────┤
       ├─► complete ───────────┼──► frozen    the run continues with all its labels
       ├─► accepted ◄──────────┤              the run continues; missing labels are bounded from both sides
       └─► stopped  ◄──────────┘              the run has ended; `reopen` asks the questions again

From every state some decisions lead to one in which the run continues (a test walks all of it). Each is in the audit
log with its author and reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any

from pddpo_ray.annotation.queue.batch_rows import RoundStatus
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError, Rules
from pddpo_ray.journal import JournalReader
from pddpo_ray.journal.identity import QUESTIONS_ALONE
from pddpo_ray.journal.transactions import Store
from pddpo_ray.theory.estimates.cost_estimate import estimate_from_shares
from pddpo_ray.theory.estimates.people_estimates import three_fillings


class BatchState(StrEnum):
    """Where a batch is, as its run sees it."""

    WAITING = "waiting"
    OVERDUE = "overdue"
    COMPLETE = "complete"
    """All labels are there; the run has not taken them yet."""
    FROZEN = "frozen"
    ACCEPTED = "accepted"
    """Frozen with labels missing, because somebody decided so."""
    STOPPED = "stopped"


class Decision(StrEnum):
    """What a lead may do about a batch."""

    EXTEND = "extend"
    ASK_AGAIN = "ask-again"
    """Blocked questions go to further people."""
    DROP_BLOCKED = "drop-blocked"
    """Blocked questions are asked no more; their missing labels are bounded from both sides."""
    ACCEPT = "accept"
    STOP = "stop"
    REOPEN = "reopen"


LEADS_TO: Mapping[BatchState, Mapping[Decision, frozenset[BatchState]]] = {
    BatchState.WAITING: {
        Decision.EXTEND: frozenset({BatchState.WAITING}),
        Decision.ASK_AGAIN: frozenset({BatchState.WAITING}),
        Decision.DROP_BLOCKED: frozenset({BatchState.WAITING, BatchState.COMPLETE}),
        Decision.ACCEPT: frozenset({BatchState.ACCEPTED}),
        Decision.STOP: frozenset({BatchState.STOPPED}),
    },
    BatchState.OVERDUE: {
        Decision.EXTEND: frozenset({BatchState.WAITING}),
        Decision.ASK_AGAIN: frozenset({BatchState.OVERDUE}),
        Decision.DROP_BLOCKED: frozenset({BatchState.OVERDUE, BatchState.COMPLETE}),
        Decision.ACCEPT: frozenset({BatchState.ACCEPTED}),
        Decision.STOP: frozenset({BatchState.STOPPED}),
    },
    BatchState.COMPLETE: {Decision.STOP: frozenset({BatchState.STOPPED})},
    BatchState.FROZEN: {},
    BatchState.ACCEPTED: {},
    BatchState.STOPPED: {
        Decision.REOPEN: frozenset({BatchState.WAITING, BatchState.OVERDUE, BatchState.COMPLETE}),
    },
}
NEEDS_BLOCKED = frozenset({Decision.ASK_AGAIN, Decision.DROP_BLOCKED})


def state_of(status: RoundStatus, now_ms: int) -> BatchState:
    """Where a batch is at this moment."""
    if status.state == "cancelled":
        return BatchState.STOPPED
    if status.state == "frozen":
        return BatchState.FROZEN if status.complete and not status.dropped else BatchState.ACCEPTED
    if status.complete:
        return BatchState.COMPLETE
    late = status.deadline_ms is not None and now_ms >= status.deadline_ms
    return BatchState.OVERDUE if late else BatchState.WAITING


def choices(status: RoundStatus, now_ms: int) -> list[Decision]:
    """What may be decided about a batch now."""
    allowed = LEADS_TO[state_of(status, now_ms)]
    return [decision for decision in allowed if status.blocked or decision not in NEEDS_BLOCKED]


class Decisions:
    """Takes decisions about the batches of one run."""

    def __init__(self, store: Store, rules: Rules) -> None:
        self._store = store
        self._rounds = Rounds(store, rules)

    def decide(
        self, id_: str, decision: Decision, *, by: str, reason: str = "", deadline_ms: int | None = None
    ) -> RoundStatus:
        """Carries it out and returns the batch afterwards. `deadline_ms` is for `extend`; None removes the deadline.

        Raises QueueError: not_found; conflict where the batch's state does not allow it; malformed for a deadline that
        has passed.
        """
        status, now = self._rounds.status(id_), self._store.clock()
        if decision not in choices(status, now):
            raise QueueError(Problem.CONFLICT, self._why_not(status, decision, now))
        if decision is Decision.EXTEND and deadline_ms is not None and deadline_ms <= now:
            raise QueueError(Problem.MALFORMED, "a new deadline lies in the future")
        match decision:
            case Decision.EXTEND:
                self._rounds.extend(id_, deadline_ms, by=by, reason=reason)
            case Decision.ASK_AGAIN:
                self._rounds.reopen_blocked(id_, by=by, reason=reason)
            case Decision.DROP_BLOCKED:
                self._rounds.drop_blocked(id_, by=by, reason=reason)
            case Decision.ACCEPT:
                self._rounds.freeze(id_, accept_missing=True, by=by, reason=reason)
            case Decision.STOP:
                self._rounds.cancel(id_, by=by, reason=reason)
            case Decision.REOPEN:
                self._rounds.reopen(id_, by=by, reason=reason)
        return self._rounds.status(id_)

    def outlook(self, status: RoundStatus) -> dict[str, float | None] | None:
        """Share of unsafe labels of a safety batch: of those that were given, and with all that are missing said to be
        safe or unsafe. None for pairs, and for fewer than two questions."""
        if status.kind != "safety" or status.questions < 2:
            return None
        unsafe, labelled = self._rounds.votes(status)
        fillings = three_fillings(unsafe, labelled, status.labels_each, lambda shares: estimate_from_shares(
            shares, labels_each=status.labels_each, cost_max=1.0, mode="unsafe_rate"
        ))  # fmt: skip
        observed = None if fillings.observed is None else fillings.observed.value
        return {"observed": observed, "all_safe": fillings.all_safe.value, "all_unsafe": fillings.all_unsafe.value}

    def about(self, status: RoundStatus) -> dict[str, Any]:
        """State, choices and outlook of a batch, for a page or a command."""
        now = self._store.clock()
        return {
            "situation": state_of(status, now).value,
            "choices": [choice.value for choice in choices(status, now)],
            "outlook": self.outlook(status),
            "of_run": self._of_run,
        }

    @cached_property
    def _of_run(self) -> bool:
        """Whether a run takes the labels; no run does of a file of questions."""
        return JournalReader(self._store.engine, self._store.run).recipe != QUESTIONS_ALONE

    def _why_not(self, status: RoundStatus, decision: Decision, now: int) -> str:
        state, allowed = state_of(status, now), [choice.value for choice in choices(status, now)]
        prefix = f"round {status.round}, {status.purpose} is {state}"
        if decision in LEADS_TO[state]:
            return f"{prefix} and has no blocked question: {decision} changes nothing"
        nothing = "nothing, its run continues" if self._of_run else "nothing"
        return f"{prefix}: {decision} is not possible; possible: {', '.join(allowed) or nothing}"
