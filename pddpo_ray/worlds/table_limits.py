"""Limits on a world that can be enumerated: the exact problem under all of them, and labels drawn from the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import expit

from pddpo_ray.errors import UserError
from pddpo_ray.limits.quantities import Limit as StatedBound
from pddpo_ray.limits.reading import REWARD, StatedLimit
from pddpo_ray.limits.sources import within_budget
from pddpo_ray.records import Array, MeasuredValues, Response
from pddpo_ray.theory.estimates.prompt_sets import PromptSets
from pddpo_ray.theory.multipliers.feasibility import KlTerm, Reach, reach
from pddpo_ray.theory.seeds import generator_of
from pddpo_ray.worlds.limit_truth import less_reference, wins_over_reference
from pddpo_ray.worlds.oracle import Limit, Oracle


@dataclass(frozen=True, eq=False)
class TableLimits:
    """The limits of a recipe on a world. Costs are as `quantities.Limit.cost` has them: less is better."""

    base: Oracle
    """The world's own problem."""
    cell: Callable[[Response], tuple[int, int]]
    """Where an answer stands in the tables."""
    cost_max: float
    """Logits lie in [-cost_max, cost_max]."""
    stated: tuple[StatedLimit, ...]
    costs: Array
    """Expected cost of every answer under each limit, on its own prompt set; nan: unknown; 0 of a limit on the KL,
    which is about the policy. [I, X, Y]"""
    single: Array
    """What the source says of each answer by itself, before any comparison with the reference's, in its own unit; where
    a limit is a share of wins, the reward that decides it; nan: unknown. [I, X, Y]"""
    factors: Array
    """P_s(x) / P_0(x). [I, X]"""
    weights: Array
    """P_0. [X]"""
    label_noise: float = 0.0
    """Share of the labels that say the opposite."""

    @property
    def unknown(self) -> list[str]:
        """Names of limits, and `REWARD`, whose truth is unknown; with any of them there is no exact problem."""
        limits = [entry.limit.name for entry, cost in zip(self.stated, self.costs, strict=True) if np.isnan(cost).any()]
        return [*limits, *([REWARD] if np.isnan(self.base.reward).any() else [])]

    @property
    def known(self) -> TableLimits:
        """Those of the limits whose truth is known: what they forbid is certain, whatever the others allow."""
        rows = [row for row, cost in enumerate(self.costs) if not np.isnan(cost).any()]
        entries = tuple(self.stated[row] for row in rows)
        return replace(
            self, stated=entries, costs=self.costs[rows], single=self.single[rows], factors=self.factors[rows]
        )

    @property
    def scales(self) -> list[float]:
        """Length of the range of each measure's values; of a KL, which has none, what the limit allows."""
        return [range_of(entry, self.cost_max) for entry in self.stated]

    def measure(
        self, answers: Sequence[Response], seed: int, references: Sequence[Response | None] = ()
    ) -> MeasuredValues:
        """Values as the world's labellers give them; nan of other sources. [n, I] each

        Rates and logits by `labels_each` draws (one unless stated), seeded by answer and limit; means without noise.
        """
        measured = MeasuredValues.nothing(len(answers), len(self.stated))
        opponents = references or [None] * len(answers)
        for column, entry in enumerate(self.stated):
            if entry.source.kind not in ("world", "model"):  # a run's own model then says what it thinks instead
                continue
            for row in self._rows_within_budget(column, answers, seed):
                answer, other, cell = answers[row], opponents[row], (row, column)
                if not entry.wins:
                    measured.values[cell] = self._answer_value(column, answer, seed)
                elif other is not None:
                    measured.values[cell] = self._win_share(column, answer, other, seed)
                if entry.limit.quantity.versus == "reference" and other is not None:
                    measured.against[cell] = self._answer_value(column, other, seed)
        return measured

    def _rows_within_budget(self, column: int, answers: Sequence[Response], seed: int) -> Sequence[int]:
        """Rows of the answers within the limit's budget and prompts; all, where it has no budget."""
        entry = self.stated[column]
        if entry.asking.answers is None:
            return range(len(answers))
        rows = [row for row, answer in enumerate(answers) if self.factors[column, self.cell(answer)[0]] > 0]
        prompts = [answers[row].prompt.id for row in rows]
        return [rows[index] for index in within_budget(entry.limit.name, prompts, entry.asking.answers, seed)]

    def _answer_value(self, column: int, answer: Response, seed: int) -> float:
        """One answer's mean, or the share of its labels that say yes."""
        entry, truth = self.stated[column], float(self.single[(column, *self.cell(answer))])
        if entry.limit.quantity.kind == "mean":
            return truth
        return self._share(entry, float(expit(truth)) if entry.limit.quantity.kind == "logit" else truth, seed, answer)

    def _win_share(self, column: int, answer: Response, other: Response, seed: int) -> float:
        """How often labellers prefer an answer to the reference's."""
        entry, rewards = self.stated[column], self.single[column]
        chance = float(expit(rewards[self.cell(answer)] - rewards[self.cell(other)]))
        return self._share(entry, chance, seed, answer)

    def _share(self, entry: StatedLimit, chance: float, seed: int, answer: Response) -> float:
        """The share of an answer's labels that say yes: one draw of a count, as many labels as asked."""
        count = entry.asking.labels_each or 1
        chance = self.label_noise + (1.0 - 2.0 * self.label_noise) * chance
        positives = generator_of(seed, "measure", entry.limit.name, answer.id).binomial(count, min(chance, 1.0))
        return float(positives) / count

    def oracle(self, beta: float) -> Oracle:
        """The exact problem: costs on P_0 in ranges of their measures. Raises UserError where it has no solution."""
        scaled = [cost * factor[:, None] for cost, factor in zip(self.costs, self.factors, strict=True)]
        scales = self.scales
        bounds = [entry.limit.cost_limit / scale for entry, scale in zip(self.stated, scales, strict=True)]
        tables = [table / scale for table, scale in zip(scaled, scales, strict=True)]
        first, *further = (
            Limit(entry.limit.name, table, bound, weight / scale)
            for entry, table, bound, weight, scale in zip(
                self.stated, tables, bounds, self._kl.weights, scales, strict=True
            )
        )
        self.demand_feasible()
        return replace(
            self.base,
            prior=self.weights,
            cost=first.cost,
            threshold=first.threshold,
            first_kl=first.kl,
            beta=beta,
            further=tuple(further),
        )

    @cached_property
    def reached(self) -> Reach:
        """What policies of the world can reach, exactly: each limit alone, and all together."""
        excess = self.costs - np.array([entry.limit.cost_limit for entry in self.stated])[:, None, None]
        support = self.base.reference > 0
        kl = self._kl if self._kl.weights.any() else None
        return reach(excess, self.weights, scales=self.scales, factors=self.factors, answers=support, kl=kl)

    @cached_property
    def _kl(self) -> KlTerm:
        """Which limits are on the KL to the reference, in nats."""
        with np.errstate(divide="ignore"):
            log_reference = np.log(self.base.reference)
        return KlTerm(np.array([float(entry.limit.quantity.kind == "kl") for entry in self.stated]), log_reference)

    def demand_feasible(self) -> None:
        """Raises UserError where no policy keeps the limits: one of them alone, or all together."""
        reached = self.reached
        for entry, lowest in zip(self.stated, reached.lowest, strict=True):
            if lowest >= 0:
                best = as_stated(entry.limit, entry.limit.cost_limit + float(lowest))
                raise UserError(
                    f"{entry.where}: no policy of this world keeps {entry.limit}; the best that there is has {best}"
                )
        if reached.margin <= 0:
            text = ", ".join(
                f"{entry.limit.name} {as_stated(entry.limit, entry.limit.cost_limit + float(value))}"
                for entry, value in zip(self.stated, reached.together, strict=True)
            )
            raise UserError(
                f"limits: each can be kept alone, but not all together; the least broken choice has {text}: loosen one"
            )


def as_stated(limit: StatedBound, cost: float) -> str:
    """An expected cost as the quantity that the limit is stated in: `4.2 %`, `118 words`."""
    return limit.quantity.text(limit.cost(cost))


def range_of(stated_limit: StatedLimit, cost_max: float) -> float:
    """Length of the range of a measure's values; of a KL, which has none, what the limit allows; 1 of what feedback
    labels, whose unit is the logit."""
    if stated_limit.labelled:
        return 1.0
    if stated_limit.limit.quantity.kind == "kl":
        return stated_limit.limit.bound.number
    ends = stated_limit.limit.cost_range
    if ends is not None:
        return ends[1] - ends[0]
    if stated_limit.limit.quantity.kind == "logit":
        return 2.0 * cost_max
    raise AssertionError(f"{stated_limit.where}: a recipe is refused whose mean has no bounds")


def on_prompts(stated_limits: Sequence[StatedLimit], sets: PromptSets | None, prior: Array) -> tuple[Array, Array]:
    """P_0 of a world's prompts and every limit's P_s / P_0. `prior` [X] where there are no sets. -> [X], [I, X]

    Raises UserError for prompts that the world does not have.
    """
    prompts, count = len(prior), len(stated_limits)
    if sets is None:
        return prior, np.ones((count, prompts))
    indices = [int(str(prompt)) for prompt in sets.prompts]
    if max(indices) >= prompts or min(indices) < 0:
        raise UserError(f"prompts: the world has the prompts 0 to {prompts - 1}, not {max(indices)}")
    weights, factors = np.zeros(prompts), np.zeros((count, prompts))
    weights[indices] = sets.weights
    for row, entry in enumerate(stated_limits):
        factors[row, indices] = sets.factor(entry.limit.quantity.over)
    return weights, factors


def costs_of(stated_limit: StatedLimit, single: Array, name: str, reference: Array | None = None) -> Array:
    """Expected costs from a table of the source's values of single answers; nan stays nan. A limit versus the reference
    compares with `reference`. [X, Y] x2 -> [X, Y]

    Raises UserError where the measure leaves its bounds.
    """
    low, high = (None, None) if stated_limit.wins else (stated_limit.scale.low, stated_limit.scale.high)
    if (low is not None and single.min() < low) or (high is not None and single.max() > high):
        raise UserError(f"{stated_limit.where}: {name} runs from {single.min():g} to {single.max():g}, beyond bounds")
    measure = single
    if stated_limit.limit.quantity.versus is not None and not np.isnan(single).any():
        assert reference is not None
        measure = wins_over_reference(single, reference) if stated_limit.wins else less_reference(single, reference)
    zero = stated_limit.limit.cost(0.0)
    return np.asarray(zero + (stated_limit.limit.cost(1.0) - zero) * measure, dtype=np.float64)
