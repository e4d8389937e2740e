"""The ledger of a run's certificates, in its journal: who was put to the test, at which level, and every draw.

Candidate k is written under round -k, so that its draws and labels belong to no round of training. It enters with its
number before anything is drawn for it; a batch of draws is there with its labels, or not at all. A copy of a run holds
the same rows, so what was spent stays spent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.limits.quantities import Amount, Kind, Limit, Quantity
from pddpo_ray.records import Array
from pddpo_ray.theory.certificate import first_certified, first_rejected, lower_bound, upper_bound
from pddpo_ray.theory.cost_estimate import bias_bound, clipped_logit
from pddpo_ray.theory.measured_draws import LOWER_WORST, UPPER_WORST, counted, scaled

State = Literal["certified", "rejected", "undecided"]
Numbers = Sequence[float | None]
CANDIDATE, BATCH = "candidate", "batch-"


@dataclass(frozen=True)
class TestedLimit:
    """One limit of a candidate, fixed when it enters. `limit` is a cost: of less, less is better."""

    name: str
    limit: float
    level: float
    """alpha: this candidate's part of delta."""
    delta: float
    """Probability of a false certificate that all candidates of the run share."""
    kind: Kind
    labels_each: int
    low: float
    """Lowest and highest cost of one answer."""
    high: float
    source: str
    """Who measures."""
    over: str | None = None
    """The prompt set that it is about; None: all prompts."""
    unit: str = "share"
    at_least: bool = False
    labelled: bool = True
    """Whether a draw's number is the unsafe share of its labels; False: a cost, as a measure gave it."""

    @property
    def stated(self) -> Limit:
        """The limit in the words of `quantities`, in which numbers are shown."""
        quantity = Quantity(self.kind, self.unit, self.over)
        limit = Limit(self.name, Amount(quantity, 0.0), self.at_least, 1.0 - self.delta)
        return replace(limit, bound=Amount(quantity, limit.cost(self.limit)))

    def amount(self, cost: float) -> Amount:
        """A cost as a number of the quantity that the limit is stated in."""
        return Amount(self.stated.quantity, self.stated.cost(cost))

    @property
    def bias(self) -> float:
        """How much higher than its estimate the mean may be, whatever the number of draws."""
        return bias_bound(self.labels_each, self.high) if self.kind == "logit" else 0.0

    @property
    def possible(self) -> bool:
        """Whether some number of draws could certify it."""
        return 0.0 < self.to_unit(self.limit - self.bias) < 1.0

    def draws(self, numbers: Numbers) -> Array:
        """What is bet on: one number in [0, 1] per draw, NaN where nothing was measured. [n] -> [n]"""
        costs = np.array([np.nan if number is None else number for number in numbers], dtype=np.float64)
        if self.labelled and self.kind == "logit":
            costs = clipped_logit(costs, self.high)
        return scaled(costs, self.low, self.high)

    def to_unit(self, cost: float) -> float:
        return (cost - self.low) / (self.high - self.low)

    def from_unit(self, value: float) -> float:
        return self.low + value * (self.high - self.low)


@dataclass(frozen=True)
class Finding:
    """What the draws so far say about one limit; bounds are costs and hold at every look."""

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
    statement: str
    """What the sentence is about: prompts, and how they were drawn."""
    estimated: tuple[str, ...] = ()
    """Limits that no draw can certify, each with its reason: they are estimated only."""

    @property
    def round(self) -> int:
        """Under which its rows are written."""
        return -self.number

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Candidate:
        limits = tuple(TestedLimit(**limit) for limit in stored["limits"])
        lists = {name: tuple(stored[name]) for name in ("versions", "estimated")}
        return cls(**{**stored, **lists, "limits": limits})


@dataclass(frozen=True)
class Entry:
    """A line of the ledger: a candidate and, by limit, the answers drawn for it with the number of each, in order."""

    candidate: Candidate
    numbers: Mapping[str, Numbers]
    """Unsafe shares or costs; None: the source gave no number."""
    draws: Mapping[str, tuple[str, ...]]
    """Ids of the answers."""

    @property
    def count(self) -> int:
        """Draws for the limit that needed the most."""
        return max((len(one) for one in self.draws.values()), default=0)

    @property
    def findings(self) -> dict[str, Finding]:
        return {limit.name: finding(limit, self.numbers[limit.name]) for limit in self.candidate.limits}

    @property
    def state(self) -> State:
        """Certified if every limit is, rejected if any is."""
        states = {one.state for one in self.findings.values()}
        return "rejected" if "rejected" in states else "certified" if states == {"certified"} else "undecided"


@dataclass(frozen=True)
class PromptFinding:
    """What the draws of one prompt say by themselves; costs, bounds valid at every look."""

    prompt: str
    draws: int
    mean: float
    upper: float
    lower: float


def by_prompt(entry: Entry, limit: TestedLimit, prompt_of: Mapping[str, str]) -> list[PromptFinding]:
    """Each prompt that was drawn for a limit; `prompt_of` names an answer's prompt.

    A prompt's bounds are at the limit's whole delta and shaped for its bound. Draws without a number count as the worst
    for each end; they stay out of the mean, which is NaN where there is no other.
    """
    numbers: dict[str, list[float | None]] = {}
    for draw, value in zip(entry.draws[limit.name], entry.numbers[limit.name], strict=True):
        numbers.setdefault(prompt_of[draw], []).append(value)
    alone = replace(limit, level=limit.delta)
    found = []
    for prompt, mine in numbers.items():
        values = limit.draws(mine)
        known = values[~np.isnan(values)]
        mean = limit.from_unit(float(known.mean())) if known.size else float("nan")
        ends = finding(alone, mine)
        found.append(PromptFinding(prompt, len(mine), mean, min(ends.upper, limit.high), max(ends.lower, limit.low)))
    return found


def finding(tested: TestedLimit, numbers: Numbers) -> Finding:
    """The bets on these draws, looked at after each of them: what came first counts, later draws undo nothing.

    A draw without a number counts as the highest cost against the limit and as the lowest one for it.
    """
    values, limit = tested.draws(numbers), tested.to_unit(tested.limit - tested.bias)
    least, most = counted(values, LOWER_WORST), counted(values, UPPER_WORST)
    above = tested.to_unit(tested.limit + tested.bias)
    upper = tested.from_unit(upper_bound(most, limit, tested.level)) + tested.bias
    lower = tested.from_unit(lower_bound(least, min(above, 0.999), tested.level)) - tested.bias
    certified = first_certified(most, limit, tested.level)
    rejected = first_rejected(least, above, tested.level) if above < 1.0 else None
    # what a bound said at one look holds for ever, so later draws loosen none
    if certified is not None and (rejected is None or certified <= rejected):
        return Finding("certified", min(upper, tested.limit), lower, certified)
    if rejected is None:
        return Finding("undecided", upper, lower, rejected)
    return Finding("rejected", upper, max(lower, tested.limit), rejected)


def read_ledger(journal: JournalReader) -> list[Entry]:
    """All candidates in the order in which they entered."""
    phases = [phase for phase in journal.phases() if phase.round < 0]
    entries = []
    for phase in sorted((one for one in phases if one.phase == CANDIDATE), key=lambda one: -one.round):
        candidate = Candidate.from_json(phase.payload)
        mine = [one for one in phases if one.round == phase.round and one.phase.startswith(BATCH)]
        mine.sort(key=lambda one: int(one.phase.removeprefix(BATCH)))
        names = [limit.name for limit in candidate.limits]
        numbers = {name: [one for batch in mine for one in batch.payload["numbers"].get(name, ())] for name in names}
        draws = {name: tuple(one for batch in mine for one in batch.payload["draws"].get(name, ())) for name in names}
        entries.append(Entry(candidate, numbers, draws))
    return entries


def line_of(journal: JournalReader, number: int) -> Entry:
    """The line of candidate `number`, which is there."""
    return next(entry for entry in read_ledger(journal) if entry.candidate.number == number)


def enter(journal: Journal, candidate: Candidate) -> Candidate:
    """Writes a candidate into the ledger: from here on what is drawn counts for it."""
    journal.round = candidate.round
    return Candidate.from_json(journal.once(CANDIDATE, candidate.as_json))
