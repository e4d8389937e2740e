"""Limits on tables: a rate learned from measured values against comparisons, and the dual against a grid of weights.

    python -m bench.limits_on_tables rates      # 20 worlds, limits of 1, 5 and 30 %, equal numbers of labels
    python -m bench.limits_on_tables grid       # three limits, 27 fixed weight vectors at the same budget

Learners are the ones that runs on tables use (box maximum likelihood, least squares of measured differences, the joint
Newton step), over simulated labels. A figure is the mean over the last ten rounds.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import expit, softmax

from pddpo_ray.records import Array
from pddpo_ray.theory.intervals import mean_interval, student_half_width
from pddpo_ray.theory.matrix_dual import (
    COVARIANCE_ROUNDS,
    CostEstimates,
    LimitState,
    NewtonRule,
    newton_step,
    within_covariance,
)
from pddpo_ray.theory.mle import box_mle
from pddpo_ray.theory.several_limits import LagrangianDual, minimise
from pddpo_ray.theory.value_stage import table_scores

PROMPTS, ANSWERS, BETA = 6, 8, 0.2
ROUNDS, LAST = 40, 10
OFFLINE, PAIRS, ASKED = 600, 32, 256
"""Offline pairs; pairs and answers for the estimates in a round."""
SCORE_MAX = 8.0


@dataclass(frozen=True)
class World:
    """Tables [X, Y], costs [I, X, Y] as chances of a label "yes", limits [I]. Prompts are alike."""

    reference: Array
    reward: Array
    costs: Array
    limits: Array

    @property
    def dual(self) -> LagrangianDual:
        excess = self.costs - self.limits[:, None, None]
        prior = np.full(PROMPTS, 1.0 / PROMPTS)
        return LagrangianDual(np.log(self.reference), self.reward, excess, prior, BETA)

    def f(self, policy: Array) -> float:
        divergence = np.log(np.maximum(policy, 1e-300)) - np.log(self.reference)
        return float(np.sum(policy * (self.reward - BETA * divergence)) / PROMPTS)

    def g(self, policy: Array) -> Array:
        return np.einsum("xy,ixy->i", policy, self.costs) / PROMPTS - self.limits


def drawn_world(seed: int, limits: tuple[float, ...]) -> World:
    """A random world in which the best policy without limits breaks each, and all can be kept with room."""
    generator = np.random.default_rng([seed, len(limits), round(1000 * limits[0])])
    while True:
        reference = generator.dirichlet(2.0 * np.ones(ANSWERS), PROMPTS)
        reward = np.clip(generator.normal(size=(PROMPTS, ANSWERS)), -2.0, 2.0)
        logits = np.clip(generator.normal(-3.0, 2.5, (len(limits), PROMPTS, ANSWERS)), -SCORE_MAX, SCORE_MAX)
        world = World(reference, reward, expit(logits), np.array(limits))
        free = world.g(world.dual.policy(np.zeros(len(limits))))
        best = minimise(world.dual)
        if (free > 0.3 * world.limits).all() and (best > 0.05).all() and best.max() < 20.0:
            return world


@dataclass
class Labels:
    """What has been labelled so far: wins of comparisons, counts and sums of measured answers."""

    reward: Array
    cost: Array
    counts: Array
    sums: Array


def compared(world: World, labels: Labels, chances: Array, count: int, generator: np.random.Generator) -> None:
    """`count` pairs, one answer from `chances`, one from the reference: compared for reward and cost, and measured."""
    logits = np.log(world.costs[0]) - np.log1p(-world.costs[0])
    for x in generator.integers(0, PROMPTS, count):
        a, b = generator.choice(ANSWERS, p=chances[x]), generator.choice(ANSWERS, p=world.reference[x])
        for wins, scores in ((labels.reward, world.reward), (labels.cost, logits)):
            first = generator.random() < expit(scores[x, a] - scores[x, b])
            wins[x, a if first else b, b if first else a] += 1.0
        for y in (a, b):
            labels.counts[x, y] += 1.0
            labels.sums[:, x, y] += generator.random(len(world.costs)) < world.costs[:, x, y]


def asked(world: World, policy: Array, count: int, generator: np.random.Generator) -> tuple[Array, Array, Array]:
    """Fresh answers, two per prompt drawn, one label each under every limit. -> prompts, answers [n], labels [n, I]"""
    prompts = np.repeat(generator.integers(0, PROMPTS, count // 2), 2)
    answers = np.array([generator.choice(ANSWERS, p=policy[x]) for x in prompts])
    drawn = generator.random((len(prompts), len(world.costs))) < world.costs[:, prompts, answers].T
    return prompts, answers, drawn.astype(np.float64)


def from_values(labels: Labels, multipliers: Array) -> Array:
    """sum_i lambda_i C_i by least squares of all measured pairs. -> [X, Y]"""
    rows = [
        (x, a, b, labels.counts[x, a] * labels.counts[x, b] / labels.counts[x].sum())
        for x in range(PROMPTS)
        for a in range(ANSWERS)
        for b in range(a + 1, ANSWERS)
        if labels.counts[x, a] and labels.counts[x, b]
    ]
    x, a, b, weights = (np.array(column) for column in zip(*rows, strict=True))
    means = np.tensordot(multipliers, labels.sums, 1) / np.maximum(labels.counts, 1.0)
    return table_scores(x, a, b, means[x, a] - means[x, b], shape=labels.counts.shape, weights=weights)


def simulated(world: World, seed: int, arm: str, weights: Array | None = None) -> tuple[float, Array]:
    """One run. -> mean f loss and mean g [I] of the last rounds. `weights` fixes the multipliers."""
    generator = np.random.default_rng([seed, 5])
    limits, shape = len(world.limits), (PROMPTS, ANSWERS)
    labels = Labels(
        np.zeros((*shape, ANSWERS)), np.zeros((*shape, ANSWERS)), np.zeros(shape), np.zeros((limits, *shape))
    )
    compared(world, labels, world.reference, OFFLINE, generator)
    states = tuple(LimitState(str(i), 1.0, 40.0, float(limit)) for i, limit in enumerate(world.limits))
    multiplier, losses, excess = 1.0, [], []
    covariances: list[Array] = []
    best = world.f(world.dual.policy(minimise(world.dual)))
    for _ in range(ROUNDS):
        reward = box_mle(labels.reward, 2.0)
        base = np.log(world.reference) + reward / BETA
        lambdas = np.array([state.multiplier for state in states]) if weights is None else weights
        cost = box_mle(labels.cost, SCORE_MAX) if arm == "comparisons" else None
        policy = softmax(base - (from_values(labels, lambdas) if cost is None else multiplier * cost) / BETA, axis=1)
        losses.append(best - world.f(policy))
        excess.append(world.g(policy))
        # a measured pair costs a label more than a compared one: the other arm asks so many more answers
        extra = PAIRS if arm == "comparisons" else 0
        prompts, answers, drawn = asked(world, policy, ASKED + extra, generator)
        if cost is None:
            np.add.at(labels.counts, (prompts, answers), 1.0)
            for i in range(limits):
                np.add.at(labels.sums[i], (prompts, answers), drawn[:, i])
            groups = np.repeat(np.arange(len(prompts) // 2), 2).tolist()
            counts = np.maximum(labels.counts[prompts, answers], 2.0)
            means = labels.sums[:, prompts, answers].T / counts[:, None]
            # what repeated labels of one answer show
            noise = means * (1.0 - means) * (counts / (counts - 1.0))[:, None]
            covariances.append(within_covariance(drawn, groups, noise))
            recent = np.mean(covariances[-COVARIANCE_ROUNDS:], axis=0)
            estimates = CostEstimates(drawn.mean(axis=0), np.zeros(limits), recent)
            if weights is None:
                states, _ = newton_step(states, estimates, NewtonRule(BETA, 20.0 / np.sqrt(ROUNDS)))
        else:
            # the slope of a rate in the multiplier of its logits is -Cov(rate, logit) / beta, by the fitted costs
            rate, mean = expit(cost), np.sum(policy * cost, axis=1, keepdims=True)
            slope = max(float(np.sum(policy * rate * (cost - mean)) / PROMPTS), 1e-3)
            step = 0.5 * BETA * float(drawn.mean() - world.limits[0]) / slope
            multiplier = float(np.clip(multiplier + np.clip(step, -0.3, 0.3), 0.0, 10.0))
        compared(world, labels, policy, PAIRS, generator)
    return float(np.mean(losses[-LAST:])), np.mean(excess[-LAST:], axis=0)


def rates(worlds: int = 20) -> None:
    """Gap of a limit on a rate, learned from values and from comparisons."""
    print("| limit | gap, values | gap, comparisons | difference, 95 % by Student | excess, values | comparisons |")
    print("|---|---|---|---|---|---|")
    for limit in (0.01, 0.05, 0.3):
        found: dict[str, list[tuple[float, float]]] = {"values": [], "comparisons": []}
        for seed in range(worlds):
            world = drawn_world(seed, (limit,))
            price = 2.0 * float(minimise(world.dual)[0])
            for arm, gaps in found.items():
                loss, excess = simulated(world, seed, arm)
                gaps.append((loss + price * max(float(excess[0]), 0.0), float(excess[0])))
        values, comparisons = (np.array(found[arm]) for arm in ("values", "comparisons"))
        apart = mean_interval(comparisons[:, 0] - values[:, 0])
        assert apart is not None
        assert apart.standard_error is not None
        half = student_half_width(apart.standard_error, apart.count)
        print(
            f"| {100 * limit:g} % | {values[:, 0].mean():.3f} | {comparisons[:, 0].mean():.3f} |"
            f" {apart.value:.3f} ({apart.value - half:.3f} to {apart.value + half:.3f}) |"
            f" {100 * values[:, 1].mean():+.2f} % | {100 * comparisons[:, 1].mean():+.2f} % |"
        )


def grid(worlds: int = 5) -> None:
    """Three limits at once: the dual, and 27 fixed weight vectors with as many labels each."""
    levels = (0.5, 2.0, 8.0)
    print(
        "| world | lambda* | gap, dual | largest excess | weight vectors that keep all limits | best gap among them |"
    )
    print("|---|---|---|---|---|---|")
    for seed in range(worlds):
        world = drawn_world(seed, (0.05, 0.1, 0.3))
        optimum = minimise(world.dual)
        price = 2.0 * float(optimum.sum())

        def gap(loss: float, excess: Array, price: float = price) -> float:
            return loss + price * float(np.maximum(excess, 0.0).sum())

        loss, excess = simulated(world, seed, "values")
        tried = [simulated(world, seed, "values", np.array(vector)) for vector in product(levels, repeat=3)]
        kept = [gap(*one) for one in tried if (one[1] <= 0.02).all()]
        best = f"{min(kept):.3f}" if kept else "none"
        print(
            f"| {seed} | {', '.join(f'{value:.2f}' for value in optimum)} | {gap(loss, excess):.3f} |"
            f" {100 * excess.max():+.2f} % | {len(kept)} of {len(tried)} | {best} |"
        )


if __name__ == "__main__":
    {"rates": rates, "grid": grid}[sys.argv[1]]()
