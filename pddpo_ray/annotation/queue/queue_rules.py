"""Settings of the queue, and its reasons and outcomes. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pddpo_ray.config import QueueConfig


@dataclass(frozen=True)
class Rules:
    """How questions are handed out."""

    lease_s: float = 900.0
    """A question not answered by then may go to someone else."""
    idle_s: float = 600.0
    """The page gives a question back when nothing happened on it for so long; also the most that one answer counts as
    work."""
    hold_s: float = 7200.0
    """Longest time that one person can keep a question, however often it is renewed."""
    leases_each: int = 2
    """Questions in one person's hands: the one on the screen and the next."""
    undo_s: float = 600.0
    """How long an answer can be taken back, while its round is open."""
    refusals_max: int = 5
    """Number of people whose skip, flag or "cannot tell" blocks a question until a lead looks at it."""
    gold_rate: float = 0.05
    """Share of questions whose answer is known; they never count as labels."""
    gold_first: int = 60
    """Number of a person's first answers in a day among which control questions are twice as frequent."""
    risk_max: float = 0.5
    """People who opted out of harmful text get nothing above this risk, and nothing whose risk nobody knows."""
    backlog_max: int = 20_000
    """Missing labels above which no new round is opened: the sampler waits for the people."""
    seed: int = 0
    """Of screen orders, gold and ties."""

    @classmethod
    def of(cls, settings: QueueConfig) -> Rules:
        """The same in the run and in the service."""
        return cls(lease_s=settings.lease_s, gold_rate=settings.gold_rate)

    @property
    def lease_ms(self) -> int:
        return int(self.lease_s * 1000)


class Problem(StrEnum):
    """Why the queue refuses a request; stable words for programs."""

    NOT_FOUND = "not_found"
    NOT_YOURS = "not_yours"
    ANSWERED_ALREADY = "answered_already"
    KEY_REUSED = "key_reused"
    ROUND_CLOSED = "round_closed"
    TOO_LATE = "too_late"
    DAILY_CAP = "daily_cap"
    MALFORMED = "malformed"
    BACKLOG = "backlog"
    CONSENT = "consent"
    CONFLICT = "conflict"


class QueueError(Exception):
    """A request that the queue's rules refuse; `problem` is for programs, the message for people."""

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


class Outcome(StrEnum):
    """What became of an answer."""

    COUNTED = "counted"
    SURPLUS = "surplus"
    """Kept and thanked for, but others were faster: the question had all its labels."""
    REFUSED = "refused"
    """The person did not answer (skip, flag, cannot tell); somebody else is asked."""
