"""Worlds for the studies of limits: random tables, and drawn text worlds whose policies are log-linear (the twin).

A world draws labels of its own truth and fits what a run fits from them. A table has a score for every answer; the
twin has weights of phrases, phrases by topic and pairs of phrases, so a rate is outside what its scores can say.
The twin's reference is a product of phrase frequencies with the rare phrases at one per cent, in place of a network's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax

from pddpo_lab.mle import box_mle, unbounded_logistic, win_counts
from pddpo_lab.value_scores import table_scores
from pddpo_lab.worlds.log_linear import LogLinear, phrase_blocks
from pddpo_ray.config import DrawnFamilyConfig, RateLimitConfig
from pddpo_ray.records import Array
from pddpo_ray.theory.multipliers.several_limits import LagrangianDual, minimise
from pddpo_ray.worlds.text.drawn_world import DrawnWorldSpec, build_drawn_world
from pddpo_ray.worlds.text.family import drawn_grammar, reference_spread
from pddpo_ray.worlds.text.grammar import Grammar

Indices = NDArray[np.int64]
BETA = 0.2
SCORE_MAX = 8.0
"""Costs are logits in [-SCORE_MAX, SCORE_MAX]."""
PRIOR_SD = 2.0
"""Standard deviation of the difference of two answers' scores before any label; of two rates, a quarter of it."""
RARE = 0.01
"""Frequency of a rare phrase under the twin's reference."""


@dataclass
class Labels:
    """What has been labelled so far. Comparisons as (prompt, winner, loser), measured answers as counts and sums."""

    shape: tuple[int, int]
    limits: int
    reward: list[tuple[int, int, int]] = field(default_factory=list)
    cost: list[tuple[int, int, int]] = field(default_factory=list)
    counts: Array = field(init=False)
    """[X, Y]"""
    sums: Array = field(init=False)
    """[I, X, Y]"""
    spent: int = 0
    """Labels about costs, of either kind."""

    def __post_init__(self) -> None:
        self.counts, self.sums = np.zeros(self.shape), np.zeros((self.limits, *self.shape))

    def measure(self, prompts: Indices, answers: Indices, drawn: Array) -> None:
        """One label of every answer under every limit. [n], [n], [n, I]"""
        np.add.at(self.counts, (prompts, answers), 1.0)
        for one, values in zip(self.sums, drawn.T, strict=True):
            np.add.at(one, (prompts, answers), values)
        self.spent += drawn.size


class Learner(Protocol):
    """Scores [X, Y] from labels."""

    def compared(self, pairs: list[tuple[int, int, int]], bound: float) -> Array: ...

    def measured(self, labels: Labels, multipliers: Array) -> Array:
        """sum_i lambda_i C_i."""
        ...


@dataclass(frozen=True)
class Tables:
    """A score for every answer."""

    shape: tuple[int, int]

    def compared(self, pairs: list[tuple[int, int, int]], bound: float) -> Array:
        return box_mle(win_counts(*np.array(pairs).T, shape=self.shape), bound)

    def measured(self, labels: Labels, multipliers: Array) -> Array:
        counts = labels.counts
        rows = [
            (x, a, b, counts[x, a] * counts[x, b] / counts[x].sum())
            for x in range(self.shape[0])
            for a in range(self.shape[1])
            for b in range(a + 1, self.shape[1])
            if counts[x, a] and counts[x, b]
        ]
        x, a, b, weights = zip(*rows, strict=True)
        means = np.tensordot(multipliers, labels.sums, 1) / np.maximum(counts, 1.0)
        return table_scores(x, a, b, means[x, a] - means[x, b], shape=self.shape, weights=weights)


@dataclass(frozen=True, eq=False)
class Twin:
    """Weights of features with a normal prior, as `world.learner: loglinear` fits them."""

    policies: LogLinear

    def compared(self, pairs: list[tuple[int, int, int]], bound: float) -> Array:
        prompts, winners, losers = np.array(pairs).T
        rows = self.policies.features(prompts, winners) - self.policies.features(prompts, losers)
        scores = self.policies.scores(unbounded_logistic(rows, ridge=PRIOR_SD**-2))
        return np.clip(scores - scores.mean(axis=1, keepdims=True), -2.0 * bound, 2.0 * bound)

    def measured(self, labels: Labels, multipliers: Array) -> Array:
        """Ridge regression about each prompt's mean: that is the sum over all pairs of its answers."""
        prompts, answers = np.nonzero(labels.counts)
        weights, values = labels.counts[prompts, answers], np.tensordot(multipliers, labels.sums, 1)[prompts, answers]
        rows = self.policies.features(prompts, answers)
        values = values / weights
        for x in np.unique(prompts):
            own = prompts == x
            rows[own] -= np.average(rows[own], axis=0, weights=weights[own])
            values[own] -= np.average(values[own], weights=weights[own])
        shares = labels.sums.sum(axis=(1, 2)) / labels.counts.sum()
        noise = float(multipliers**2 @ (shares * (1.0 - shares)))
        ridge = noise / max(float(multipliers @ multipliers) * (PRIOR_SD / 4.0) ** 2, 1e-12)
        gram = rows.T @ (weights[:, None] * rows) + max(ridge, 1e-6) * np.eye(rows.shape[1])
        return self.policies.scores(np.asarray(np.linalg.solve(gram, rows.T @ (weights * values)), dtype=np.float64))


@dataclass(frozen=True, eq=False)
class World:
    """Tables [X, Y], costs [I, X, Y] as chances of a label "yes", limits [I]. Prompts are alike."""

    reference: Array
    reward: Array
    costs: Array
    limits: Array
    learner: Learner

    @cached_property
    def dual(self) -> LagrangianDual:
        excess = self.costs - self.limits[:, None, None]
        prior = np.full(len(self.reward), 1.0 / len(self.reward))
        return LagrangianDual(np.log(self.reference), self.reward, excess, prior, BETA)

    @cached_property
    def optimum(self) -> Array:
        """lambda* [I]"""
        return minimise(self.dual)

    def f(self, policy: Array) -> float:
        divergence = np.log(np.maximum(policy, 1e-300)) - np.log(self.reference)
        return float(np.sum(policy * (self.reward - BETA * divergence)) / len(self.reward))

    def g(self, policy: Array) -> Array:
        return np.einsum("xy,ixy->i", policy, self.costs) / len(self.reward) - self.limits


def table_world(seed: int, limits: tuple[float, ...]) -> World:
    """A random table in which the best policy without limits breaks each, and all can be kept with room."""
    generator = np.random.default_rng([seed, len(limits), round(1000 * limits[0])])
    shape = (6, 8)
    while True:
        reference = generator.dirichlet(2.0 * np.ones(shape[1]), shape[0])
        reward = np.clip(generator.normal(size=shape), -2.0, 2.0)
        logits = np.clip(generator.normal(-3.0, 2.5, (len(limits), *shape)), -SCORE_MAX, SCORE_MAX)
        world = World(reference, reward, expit(logits), np.array(limits), Tables(shape))
        free = world.g(world.dual.policy(np.zeros(len(limits))))
        best = world.optimum
        if (free > 0.3 * world.limits).all() and (best > 0.05).all() and best.max() < 20.0:
            return world


def twin_world(seed: int, limits: tuple[float, ...]) -> World:
    """A drawn text world with a rate limit. Further rates are those of its further costs, with limits halfway between
    what the reward's optimum has and 0; a seed whose limits do not all bind is drawn on."""
    family = DrawnFamilyConfig(limit=RateLimitConfig(at_most=limits[0]), further_costs=len(limits) - 1)
    for attempt in range(50):
        number = seed + 100_000 * attempt
        grammar = drawn_grammar(family, number)
        spec = DrawnWorldSpec(seed=number, family=family, beta=BETA, cost_max=6.0)
        made = build_drawn_world(spec, np.log(0.995) + phrase_frequencies(grammar, number), grammar)
        tables = [made.oracle.cost, *(expit(limit.cost) for limit in made.further)]
        reference = made.oracle.reference[:, :-1]
        reference = reference / reference.sum(axis=1, keepdims=True)
        learner = Twin(LogLinear(np.log(reference), phrase_blocks(grammar, slots=1.0, topics=0.5, interactions=0.5)))
        costs = np.stack([table[:, :-1] for table in tables])
        world = World(reference, made.oracle.reward[:, :-1], costs, np.zeros(len(limits)), learner)
        free = world.g(world.dual.policy(np.zeros(len(limits))))
        world = replace(world, limits=np.array([limits[0], *(0.5 * free[1:])]))
        if (world.optimum > 0.05).all() and world.optimum.max() < 20.0:
            return world
    raise RuntimeError(f"no world of seed {seed} in which all limits bind")


def phrase_frequencies(grammar: Grammar, seed: int, frequency: float = RARE) -> Array:
    """log-probabilities of answers made of phrases drawn slot by slot, a little different by topic. -> [X, Y]

    Every rare phrase has the same `frequency`.
    """
    generator = np.random.default_rng([seed, 77])
    total = np.zeros((len(grammar.prompt_features), len(grammar.answer_features)))
    for number, slot in enumerate(grammar.slots):
        rare = np.array([phrase.rare for phrase in slot.phrases])
        liking = generator.normal(0.0, reference_spread(seed), len(slot.phrases))
        by_topic = liking + generator.normal(0.0, 0.3, (len(grammar.topics), len(slot.phrases)))
        common = log_softmax(np.where(rare, -np.inf, by_topic), axis=1) + np.log(1.0 - frequency * rare.sum())
        chances = np.where(rare, np.log(frequency), common)
        total += chances[grammar.prompt_features[:, 0]][:, grammar.answer_features[:, number]]
    return total
