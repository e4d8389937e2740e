"""Limits on a world that can be enumerated: the exact problem under all of them, and labels drawn from the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import expit

from pddpo_ray.contracts import MeasuredCosts
from pddpo_ray.errors import UserError
from pddpo_ray.limits.quantities import Limit as StatedBound
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.records import Array, Response
from pddpo_ray.theory.cost_estimate import clipped_logit, logit_noise
from pddpo_ray.theory.feasibility import Reach, reach
from pddpo_ray.theory.matrix_dual import label_variance
from pddpo_ray.theory.prompt_sets import PromptSets
from pddpo_ray.theory.seeds import generator_of
from pddpo_ray.worlds.oracle import Limit, Oracle
from pddpo_ray.worlds.tabular import TabularWorld


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
    """Expected cost of every answer under each limit, on its own prompt set; nan: unknown. [I, X, Y]"""
    factors: Array
    """P_s(x) / P_0(x). [I, X]"""
    weights: Array
    """P_0. [X]"""
    label_noise: float = 0.0
    """Share of the labels that say the opposite."""

    @property
    def unknown(self) -> list[str]:
        """Names of the limits whose truth nobody knows; with one of them there is no exact problem."""
        return [one.limit.name for one, cost in zip(self.stated, self.costs, strict=True) if np.isnan(cost).any()]

    @property
    def scales(self) -> list[float]:
        """Length of the range of each measure's values."""
        return [range_of(one, self.cost_max) for one in self.stated]

    def measure(self, answers: Sequence[Response], seed: int) -> MeasuredCosts:
        """Costs as the world's labellers give them, with the variance of their noise; nan of other sources. [n, I] each

        Rates and logits by `labels_each` draws (one unless stated), seeded by answer and limit; means without noise.
        """
        costs, unsafe = np.full((2, len(answers), len(self.stated)), np.nan)
        noise = np.zeros(costs.shape)
        for column, stated in enumerate(self.stated):
            if stated.source.kind == "world":
                for row, answer in enumerate(answers):
                    truth = float(self.costs[(column, *self.cell(answer))])
                    costs[row, column], noise[row, column], unsafe[row, column] = self._drawn(
                        stated, truth, seed, answer
                    )
        return MeasuredCosts(costs, noise, np.zeros(costs.shape, dtype=bool), unsafe)

    def _drawn(self, stated: StatedLimit, truth: float, seed: int, answer: Response) -> tuple[float, float, float]:
        """One answer's measured cost, the variance of its noise, and of a logit the share of unsafe labels."""
        kind, count = stated.limit.quantity.kind, stated.asking.labels_each or 1
        if kind == "mean":
            return truth, 0.0, np.nan
        chance = float(expit(truth)) if kind == "logit" else truth
        chance = self.label_noise + (1.0 - 2.0 * self.label_noise) * chance
        # one draw of a count: as many labels as asked
        share = generator_of(seed, "measure", stated.limit.name, answer.id).binomial(count, min(chance, 1.0)) / count
        if kind == "logit":
            bound = self.cost_max
            noise = float(logit_noise(np.array([share]), count, bound)[0])
            return float(clipped_logit([share], bound)[0]), noise, share
        return share, float(label_variance([share], count)[0]), np.nan

    def oracle(self, beta: float) -> Oracle:
        """The exact problem: costs on P_0 in ranges of their measures. Raises UserError where it has no solution."""
        scaled = [cost * factor[:, None] for cost, factor in zip(self.costs, self.factors, strict=True)]
        scales = self.scales
        bounds = [one.limit.cost_limit / scale for one, scale in zip(self.stated, scales, strict=True)]
        tables = [table / scale for table, scale in zip(scaled, scales, strict=True)]
        further = tuple(
            Limit(one.limit.name, table, bound)
            for one, table, bound in zip(self.stated[1:], tables[1:], bounds[1:], strict=True)
        )
        self.demand_feasible()
        return replace(self.base, prior=self.weights, cost=tables[0], threshold=bounds[0], beta=beta, further=further)

    @cached_property
    def reached(self) -> Reach:
        """What policies of the world can reach, exactly: each limit alone, and all together."""
        excess = self.costs - np.array([one.limit.cost_limit for one in self.stated])[:, None, None]
        there = self.base.reference > 0
        return reach(excess, self.weights, scales=self.scales, factors=self.factors, answers=there)

    def demand_feasible(self) -> None:
        """Raises UserError where no policy keeps the limits: one of them alone, or all together."""
        found = self.reached
        for stated, lowest in zip(self.stated, found.lowest, strict=True):
            if lowest >= 0:
                best = as_stated(stated.limit, stated.limit.cost_limit + float(lowest))
                raise UserError(
                    f"{stated.where}: no policy of this world keeps {stated.limit}; the best that there is has {best}"
                )
        if found.margin <= 0:
            each = ", ".join(
                f"{one.limit.name} {as_stated(one.limit, one.limit.cost_limit + float(value))}"
                for one, value in zip(self.stated, found.together, strict=True)
            )
            raise UserError(
                f"limits: each can be kept alone, but not all together; the least broken choice has {each}: loosen one"
            )


def as_stated(limit: StatedBound, cost: float) -> str:
    """An expected cost as the quantity that the limit is stated in: `4.2 %`, `118 words`."""
    return limit.quantity.text(limit.cost(cost))


def range_of(stated: StatedLimit, cost_max: float) -> float:
    """Length of the range of a measure's values."""
    ends = stated.limit.cost_range
    if ends is not None:
        return ends[1] - ends[0]
    if stated.limit.quantity.kind == "logit":
        return 2.0 * cost_max
    raise UserError(f"{stated.where}: a mean needs `bounds: [low, high]` in a run, which its step is scaled by")


def table_limits(world: TabularWorld, stated: Sequence[StatedLimit], sets: PromptSets | None) -> TableLimits:
    """Raises UserError for a source that no table has, and for prompts that it does not have."""
    weights, factors = on_prompts(stated, sets, world.oracle.prior)
    costs = np.stack([_cost_table(world, one) for one in stated])
    return TableLimits(world.oracle, world.cell, world.oracle.cost_max, tuple(stated), costs, factors, weights)


def on_prompts(stated: Sequence[StatedLimit], sets: PromptSets | None, prior: Array) -> tuple[Array, Array]:
    """P_0 of a world's prompts and every limit's P_s / P_0. `prior` [X] where there are no sets. -> [X], [I, X]

    Raises UserError for prompts that the world does not have.
    """
    prompts, count = len(prior), len(stated)
    if sets is None:
        return prior, np.ones((count, prompts))
    indices = [int(str(prompt)) for prompt in sets.prompts]
    if max(indices) >= prompts or min(indices) < 0:
        raise UserError(f"prompts: the world has the prompts 0 to {prompts - 1}, not {max(indices)}")
    weights, factors = np.zeros(prompts), np.zeros((count, prompts))
    weights[indices] = sets.weights
    for row, one in enumerate(stated):
        factors[row, indices] = sets.factor(one.limit.quantity.over)
    return weights, factors


def _cost_table(world: TabularWorld, stated: StatedLimit) -> Array:
    """Expected cost of every answer under one limit. [X, Y]"""
    logits = {"cost": world.oracle.cost, **{limit.name: limit.cost for limit in world.oracle.further}}
    kind, name = stated.limit.quantity.kind, stated.source.what
    if stated.source.kind != "world":
        raise UserError(
            f"{stated.where}: {stated.source} reads texts; a table has none: use {{{kind}: {{world: NAME}}}}"
        )
    if kind == "logit":
        tables = logits
    else:
        rates = {label: expit(table) for label, table in logits.items()} if kind == "rate" else {}
        tables = {**rates, **world.measures}
    if name not in tables:
        known = ", ".join(tables) or "none"
        raise UserError(f"{stated.where}: this world has no {kind} called `{name}`; it has {known}")
    return costs_of(stated, np.asarray(tables[name]), f"the world's `{name}`")


def costs_of(stated: StatedLimit, measure: Array, name: str) -> Array:
    """A table of a limit's measure as costs. Raises UserError where it leaves its bounds. [X, Y] -> [X, Y]"""
    low, high = stated.limit.quantity.low, stated.limit.quantity.high
    if (low is not None and measure.min() < low) or (high is not None and measure.max() > high):
        raise UserError(f"{stated.where}: {name} runs from {measure.min():g} to {measure.max():g}, beyond bounds")
    zero = stated.limit.cost(0.0)
    return np.asarray(zero + (stated.limit.cost(1.0) - zero) * measure, dtype=np.float64)
