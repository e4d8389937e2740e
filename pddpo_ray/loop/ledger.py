"""The ledger of a run's certificates, in its journal: who was put to the test, at which level, and every draw.

Candidate k is written under round -k, so that its draws and labels belong to no round of training. It enters with its
number before anything is drawn for it; a batch of draws is there with its labels, or not at all. A copy of a run holds
the same rows, so what was spent stays spent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.records import Array
from pddpo_ray.theory.certificate import first_certified, first_rejected, lower_bound, upper_bound
from pddpo_ray.theory.cost_estimate import bias_bound
from pddpo_ray.theory.measured_draws import logit_draws

State = Literal["certified", "rejected", "undecided"]
CANDIDATE, BATCH = "candidate", "batch-"


@dataclass(frozen=True)
class TestedLimit:
    """One limit of a candidate, fixed when it enters. `limit` is on the limit's own scale, a share or a logit."""

    name: str
    limit: float
    level: float
    """alpha: this candidate's part of delta."""
    delta: float
    """Probability of a false certificate that all candidates of the run share."""
    signal: Literal["unsafe_rate", "logit_labels"]
    labels_each: int
    cost_max: float

    @property
    def bias(self) -> float:
        """How much higher than its estimate the mean may be, whatever the number of draws."""
        return bias_bound(self.labels_each, self.cost_max) if self.signal == "logit_labels" else 0.0

    def draws(self, unsafe_shares: Sequence[float]) -> Array:
        """What is bet on: one number in [0, 1] per draw. [n] -> [n]"""
        if self.signal == "logit_labels":
            return logit_draws(unsafe_shares, self.cost_max)
        return np.asarray(unsafe_shares, dtype=np.float64)

    def to_unit(self, value: float) -> float:
        return (value + self.cost_max) / (2 * self.cost_max) if self.signal == "logit_labels" else value

    def from_unit(self, value: float) -> float:
        return value * 2 * self.cost_max - self.cost_max if self.signal == "logit_labels" else value


@dataclass(frozen=True)
class Finding:
    """What the draws so far say about one limit; bounds are on the limit's own scale and hold at every look."""

    state: State
    upper: float
    lower: float
    decided_after: int | None
    """Draws that it took; None while undecided."""


@dataclass(frozen=True)
class Candidate:
    """A policy that is put to the test. `versions` are the rounds' policies that it draws from, evenly."""

    number: int
    policy: str
    versions: tuple[Mapping[str, Any], ...]
    limits: tuple[TestedLimit, ...]
    decoding: Mapping[str, Any]
    source: str
    statement: str
    """What the sentence is about: prompts, and how they were drawn."""

    @property
    def round(self) -> int:
        """Under which its rows are written."""
        return -self.number

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Candidate:
        limits = tuple(TestedLimit(**limit) for limit in stored["limits"])
        return cls(**{**stored, "versions": tuple(stored["versions"]), "limits": limits})


@dataclass(frozen=True)
class Entry:
    """A line of the ledger: a candidate and the unsafe share of every draw, by limit, in the order of drawing."""

    candidate: Candidate
    shares: Mapping[str, Sequence[float]]
    draws: tuple[str, ...]
    """Ids of the answers."""

    @property
    def findings(self) -> dict[str, Finding]:
        return {limit.name: finding(limit, self.shares[limit.name]) for limit in self.candidate.limits}

    @property
    def state(self) -> State:
        """Certified if every limit is, rejected if any is."""
        states = {one.state for one in self.findings.values()}
        return "rejected" if "rejected" in states else "certified" if states == {"certified"} else "undecided"


def finding(tested: TestedLimit, unsafe_shares: Sequence[float]) -> Finding:
    """The bets on these draws, looked at after each of them: what came first counts, later draws undo nothing."""
    values, limit = tested.draws(unsafe_shares), tested.to_unit(tested.limit - tested.bias)
    above = tested.to_unit(tested.limit + tested.bias)
    upper = tested.from_unit(upper_bound(values, limit, tested.level)) + tested.bias
    lower = tested.from_unit(lower_bound(values, min(above, 0.999), tested.level)) - tested.bias
    certified = first_certified(values, limit, tested.level)
    rejected = first_rejected(values, above, tested.level) if above < 1.0 else None
    if certified is not None and (rejected is None or certified <= rejected):
        return Finding("certified", upper, lower, certified)
    return Finding("undecided" if rejected is None else "rejected", upper, lower, rejected)


def read_ledger(journal: JournalReader) -> list[Entry]:
    """All candidates in the order in which they entered."""
    phases = [phase for phase in journal.phases() if phase.round < 0]
    entries = []
    for phase in sorted((one for one in phases if one.phase == CANDIDATE), key=lambda one: -one.round):
        candidate = Candidate.from_json(phase.payload)
        mine = [one for one in phases if one.round == phase.round and one.phase.startswith(BATCH)]
        mine.sort(key=lambda one: int(one.phase.removeprefix(BATCH)))
        shares = {
            limit.name: [share for one in mine for share in one.payload["shares"][limit.name]]
            for limit in candidate.limits
        }
        entries.append(Entry(candidate, shares, tuple(name for one in mine for name in one.payload["draws"])))
    return entries


def line_of(journal: JournalReader, number: int) -> Entry:
    """The line of candidate `number`, which is there."""
    return next(entry for entry in read_ledger(journal) if entry.candidate.number == number)


def enter(journal: Journal, candidate: Candidate) -> Candidate:
    """Writes a candidate into the ledger: from here on what is drawn counts for it."""
    journal.round = candidate.round
    return Candidate.from_json(journal.once(CANDIDATE, candidate.as_json))
