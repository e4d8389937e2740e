"""The ledger of a run's certificates, in its journal: who was put to the test, at which level, and every draw.

Candidate k is written under round -k, so that its draws and labels belong to no round of training. It enters with its
number before anything is drawn for it; a batch of draws is there with its labels, or not at all. A copy of a run holds
the same rows, so what was spent stays spent.

A mixture that its rounds' own draws certify enters before round 1, when none of its policies is known. Each round adds
its policy and its draws as a batch; what they say is about the rounds so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.journal.rows import PhaseEntry
from pddpo_ray.limits.quantities import Amount, Kind, Limit, Quantity, Versus
from pddpo_ray.records import Array
from pddpo_ray.theory.certificates.certificate import first_certified, first_rejected, lower_bound, upper_bound
from pddpo_ray.theory.certificates.measured_draws import (
    LOWER_WORST,
    UPPER_WORST,
    counted,
    mixture_decided,
    mixture_lower_bound,
    mixture_upper_bound,
    scaled,
    with_people_range,
)
from pddpo_ray.theory.estimates.cost_estimate import bias_bound, clipped_logit

State = Literal["certified", "rejected", "undecided"]
Numbers = Sequence[float | None]
CANDIDATE, BATCH = "candidate", "batch-"
DRAWN = "drawn-"
"""Phase that holds the prompts of a batch, where each is drawn once; [] where none was left."""


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
    shaped_for: float | None = None
    """The limit with which the candidate entered, where `limit` is another one that is asked about: the bets keep their
    shape, and the bounds hold for all limits together. None: `limit` itself."""
    versus: Versus | None = None
    """How answers are compared with the reference's, one drawn anew for each draw."""

    people: float | None = None
    """q, the probability with which people label a draw too, where a machine measures all: then a draw's number is
    f + (xi/q)(y - f) as a cost, and the statement is about people. None: all draws are measured alike."""

    part_of: str | None = None
    """The limit that this group of prompts, `over`, has to keep by itself too; None: it is a limit of the recipe."""

    @property
    def measured_by(self) -> str:
        """Its source in words."""
        name = self.source.removeprefix("world ")
        return self.source if name == self.source else f"the world's {name}"

    @property
    def measured_as(self) -> str:
        """The recipe's limit whose measure gives the numbers."""
        return self.part_of or self.name

    def on_group(self, group: str) -> TestedLimit:
        """The same limit on a group of the prompts alone."""
        return replace(self, name=f"{self.name} over {group}", over=group, part_of=self.name)

    def about(self, limit: float) -> TestedLimit:
        """The same test against another limit; spends no confidence."""
        entered = self.entered
        return entered if limit == entered.limit else replace(entered, limit=limit, shaped_for=entered.limit)

    @property
    def entered(self) -> TestedLimit:
        """As it stands in the ledger."""
        return self if self.shaped_for is None else replace(self, limit=self.shaped_for, shaped_for=None)

    @property
    def stated(self) -> Limit:
        """As a `Limit` in its own unit, for messages."""
        quantity = Quantity(self.kind, self.unit, self.over, versus=self.versus)
        limit = Limit(self.name, Amount(quantity, 0.0), self.at_least, 1.0 - self.delta)
        return replace(limit, bound=Amount(quantity, limit.cost(self.limit)))

    def amount(self, cost: float) -> Amount:
        """A cost in the unit of the limit."""
        return Amount(self.stated.quantity, self.stated.cost(cost))

    def between(self, lower: float, upper: float) -> tuple[str, str]:
        """Two bounds of the cost as they are printed, the measure's lower one first and neither rounded inwards."""
        low, high = sorted((self.amount(lower), self.amount(upper)), key=lambda amount: amount.number)
        return low.as_bound(up=False), high.as_bound(up=True)

    @property
    def bias(self) -> float:
        """How much higher than its estimate the mean may be, whatever the number of draws."""
        return bias_bound(self.labels_each, self.high) if self.kind == "logit" else 0.0

    @property
    def possible(self) -> bool:
        """Whether some number of draws could certify it."""
        return self.low < self.limit - self.bias < self.high

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest number of a draw, as a cost: what [0, 1] is scaled from."""
        if self.people is None:
            return self.low, self.high
        low, high = with_people_range(self.people)
        return self.low + low * (self.high - self.low), self.low + high * (self.high - self.low)

    def draws(self, numbers: Numbers) -> Array:
        """What is bet on: one number in [0, 1] per draw, NaN where nothing was measured. [n] -> [n]"""
        costs = np.array([np.nan if number is None else number for number in numbers], dtype=np.float64)
        if self.labelled and self.kind == "logit" and self.people is None:
            costs = clipped_logit(costs, self.high)
        return scaled(costs, *self.ends)

    def is_missed_by(self, numbers: Numbers) -> bool:
        """Whether these draws break the limit on average."""
        return bool(counted(self.draws(numbers), UPPER_WORST).mean() > self.to_unit(self.limit - self.bias))

    def to_unit(self, cost: float) -> float:
        low, high = self.ends
        return (cost - low) / (high - low)

    def from_unit(self, value: float) -> float:
        low, high = self.ends
        return low + value * (high - low)


@dataclass(frozen=True)
class Finding:
    """One limit after the draws so far; bounds are costs and hold at every look."""

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
    first_round: int | None = None
    """Of a mixture that its rounds' own draws certify: where it begins. None: it has draws of its own."""

    @property
    def round(self) -> int:
        """The round of its rows: -number."""
        return -self.number

    @property
    def rounds(self) -> int | None:
        """How many rounds' own draws it has; None: it has draws of its own."""
        return None if self.first_round is None else len(self.versions)

    @property
    def drawn_in(self) -> Sequence[int]:
        """Rounds under which its draws are written: its own, or those whose mixture it is."""
        first = self.first_round
        return [self.round] if first is None else range(first, first + len(self.versions))

    def of_rounds(self, versions: Sequence[Mapping[str, Any]]) -> Candidate:
        """The mixture of the rounds so far, by their policies."""
        assert self.first_round is not None
        return replace(self, policy=mixture_name(self.first_round, len(versions)), versions=tuple(versions))

    def about(self, limits: Mapping[str, float]) -> Candidate:
        """The same candidate, asked about these limits by name; of others about those with which it entered."""
        return replace(
            self, limits=tuple(limit.about(limits.get(limit.name, limit.entered.limit)) for limit in self.limits)
        )

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
    used_up: bool = False
    """Whether a certification set whose prompts are drawn once had none left."""

    def about(self, limits: Mapping[str, float]) -> Entry:
        """The same draws, asked about other limits by name."""
        return replace(self, candidate=self.candidate.about(limits))

    @property
    def count(self) -> int:
        """Draws for the limit that needed the most."""
        return max((len(ids) for ids in self.draws.values()), default=0)

    @property
    def findings(self) -> dict[str, Finding]:
        rounds = self.candidate.rounds
        return {limit.name: finding(limit, self.numbers[limit.name], rounds) for limit in self.candidate.limits}

    @property
    def state(self) -> State:
        """Certified if every limit is, rejected if any is."""
        states = {result.state for result in self.findings.values()}
        return "rejected" if "rejected" in states else "certified" if states == {"certified"} else "undecided"


def mixture_name(first: int, rounds: int) -> str:
    """`the mixture of rounds 1 to 12`"""
    if not rounds:
        return f"the mixture of rounds {first} to the last"
    return f"the mixture of rounds {first} to {first + rounds - 1}"


def finding(tested: TestedLimit, numbers: Numbers, rounds: int | None = None) -> Finding:
    """The bets on these draws, looked at after each of them: what came first counts, later draws undo nothing.

    Draws of several `rounds`, equally many of each, are looked at after the last one, about the mean over them. A draw
    without a number counts as the highest cost against the limit and as the lowest one for it.
    """
    if rounds == 0:
        return Finding("undecided", tested.high, tested.low, None)
    values, level, bias, first_limit = tested.draws(numbers), tested.level, tested.bias, tested.entered.limit
    least, most = counted(values, LOWER_WORST), counted(values, UPPER_WORST)
    limit, above = (tested.to_unit(tested.limit + sign * bias) for sign in (-1, 1))
    shape, shape_above = tested.to_unit(first_limit - bias), min(tested.to_unit(first_limit + bias), 0.999)
    if rounds is None:
        upper, lower = upper_bound(most, shape, level), lower_bound(least, shape_above, level)
        certified = first_certified(most, limit, level, shaped_for=shape)
        rejected = first_rejected(least, above, level, shaped_for=shape_above) if above < 1.0 else None
    else:
        most, least = most.reshape(rounds, -1), least.reshape(rounds, -1)
        upper, lower = mixture_upper_bound(most, shape, level), mixture_lower_bound(least, shape_above, level)
        below = mixture_decided(most, limit, level, shaped_for=shape)
        over = above < 1.0 and mixture_decided(least, above, level, above=True, shaped_for=shape_above)
        certified, rejected = (len(numbers) if decided else None for decided in (below, over))
    upper = min(tested.from_unit(upper) + bias, tested.high)
    lower = max(tested.from_unit(lower) - bias, tested.low)
    # a bound from one look holds for ever, so later draws loosen none
    if certified is not None and (rejected is None or certified <= rejected):
        return Finding("certified", min(upper, tested.limit), lower, certified)
    if rejected is None:
        return Finding("undecided", upper, lower, rejected)
    return Finding("rejected", upper, max(lower, tested.limit), rejected)


def read_ledger(journal: JournalReader) -> list[Entry]:
    """All candidates in the order in which they entered."""
    phases: dict[int, list[PhaseEntry]] = {}
    for phase in journal.phases():
        if phase.round < 0:
            phases.setdefault(-phase.round, []).append(phase)
    return [line for number in sorted(phases) if (line := _line(phases[number])) is not None]


def line_of(journal: JournalReader, number: int) -> Entry:
    """The line of candidate `number`, which is there; no other line is read."""
    line = _line(journal.phases(-number))
    assert line is not None
    return line


def _line(phases: Sequence[PhaseEntry]) -> Entry | None:
    """From all phases of one candidate; None: it did not enter."""
    entry = next((phase for phase in phases if phase.phase == CANDIDATE), None)
    if entry is None:
        return None
    candidate = Candidate.from_json(entry.payload)
    batches = [phase for phase in phases if phase.phase.startswith(BATCH)]
    batches.sort(key=lambda batch: int(batch.phase.removeprefix(BATCH)))
    names = [limit.name for limit in candidate.limits]
    if candidate.first_round is not None:
        candidate = candidate.of_rounds([batch.payload["version"] for batch in batches])
    numbers = {name: [value for batch in batches for value in batch.payload["numbers"].get(name, ())] for name in names}
    draws = {name: tuple(draw for batch in batches for draw in batch.payload["draws"].get(name, ())) for name in names}
    used_up = any(phase.phase.startswith(DRAWN) and not phase.payload for phase in phases)
    return Entry(candidate, numbers, draws, used_up)


def enter(journal: Journal, candidate: Candidate) -> Candidate:
    """Writes a candidate into the ledger: from here on what is drawn counts for it."""
    journal.round = candidate.round
    return Candidate.from_json(journal.once(CANDIDATE, candidate.as_json))
