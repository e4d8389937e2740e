"""Learned from labels: a rate and a reward from measured values against comparisons, the dual against fixed weights,
and the dual's step with the labels' noise taken out in two ways.

    python -m lab.studies.limits.run rates tables      # 60 worlds, limits of 1, 5 and 30 %
    python -m lab.studies.limits.run rates twin        # 20 worlds
    python -m lab.studies.limits.run rewards tables    # 20 worlds, no limit
    python -m lab.studies.limits.run rewards twin
    python -m lab.studies.limits.run grid tables       # three limits, 27 fixed weight vectors at the same budget each
    python -m lab.studies.limits.run grid twin
    python -m lab.studies.limits.run noise tables      # 60 worlds, limits of 1, 5 and 30 %, one label an answer
    python -m lab.studies.limits.run noise twin        # 20 worlds

Learners are the ones of runs (worlds.py), with the joint Newton step, over simulated labels and without a
bonus. All arms of `rates` and of `rewards` spend equal numbers of labels on the cost or the reward, before the rounds
and in each of them. A figure is the mean over the last rounds. The world seeds from 2000 on had been used for
nothing before the studies of rates and of weights, those from 6000 on for nothing before that of the noise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import expit, softmax

from lab.studies.limits.worlds import BETA, SCORE_MAX, Indices, Labels, World, table_world, twin_world
from pddpo_ray.parts.dual_step import ascend_all
from pddpo_ray.records import Array, CostEstimate
from pddpo_ray.theory.estimates.cost_estimate import noise_beside_learned, within_covariance
from pddpo_ray.theory.intervals import student_half_width
from pddpo_ray.theory.multipliers.dual import DampedNewton, DualState, LimitState

SEEDS, NOISE_SEEDS = 2000, 6000
"""The first world's seed."""
LAST = 10
"""Number of last rounds over which a figure is the mean."""
UPPER = 40.0
"""Upper end of a rate's multiplier, in the reward's unit; of a logit's a quarter of it."""


@dataclass(frozen=True)
class Budget:
    """Rounds, offline pairs, pairs and answers of a round. A compared pair costs one label about the cost, measuring
    both of its answers two."""

    rounds: int
    offline: int
    pairs: int
    asked: int


@dataclass(frozen=True)
class Setting:
    """Where a study runs."""

    world: Callable[[int, tuple[float, ...]], World]
    budget: Budget
    worlds: int
    grid_worlds: int


SETTINGS = {
    "tables": Setting(table_world, Budget(rounds=40, offline=600, pairs=32, asked=256), 60, 20),
    "twin": Setting(twin_world, Budget(rounds=24, offline=1200, pairs=64, asked=256), 20, 10),
}


@dataclass(frozen=True, eq=False)
class Run:
    """Loss of f, g [I] and multipliers [I], mean over the last rounds; labels spent on costs."""

    loss: float
    excess: Array
    labels: int
    multipliers: Array


def compared(world: World, labels: Labels, chances: Array, count: int, arm: str, draws: np.random.Generator) -> None:
    """`count` pairs, one answer from `chances`, one from the reference, compared for reward. For as many labels about
    the cost, all of them are compared, or both answers of every second one are measured."""
    logits = np.log(world.costs[0]) - np.log1p(-world.costs[0])
    prompts = draws.integers(0, len(world.reward), count)
    for number, x in enumerate(prompts):
        a, b = (int(draws.choice(chances.shape[1], p=table[x])) for table in (chances, world.reference))
        asked = [(labels.reward, world.reward)] + ([(labels.cost, logits)] if arm == "comparisons" else [])
        for pairs, scores in asked:
            first = draws.random() < expit(scores[x, a] - scores[x, b])
            pairs.append((int(x), a, b) if first else (int(x), b, a))
        if arm == "comparisons":
            labels.spent += 1
        elif number % 2 == 0:
            both = np.array([a, b])
            labels.measure(np.array([x, x]), both, labels_of(world, np.array([x, x]), both, draws))


def labels_of(world: World, prompts: Indices, answers: Indices, draws: np.random.Generator) -> Array:
    """One label of every answer under every limit. -> [n, I]"""
    return (draws.random((len(prompts), len(world.costs))) < world.costs[:, prompts, answers].T).astype(np.float64)


def simulated(
    world: World, budget: Budget, seed: int, arm: str, weights: Array | None = None, *, told: bool = True
) -> Run:
    """One run; `weights` [I] fixes the multipliers. `told`: see `covariance`."""
    draws = np.random.default_rng([seed, 5])
    limits = len(world.limits)
    labels = Labels((len(world.reward), world.reward.shape[1]), limits)
    compared(world, labels, world.reference, budget.offline, arm, draws)
    rule = DampedNewton(budget.rounds, BETA, 0.5, damping=0.5)
    state = DualState(tuple(LimitState(str(i), 1.0, UPPER, float(d), rule) for i, d in enumerate(world.limits)))
    multiplier = 1.0
    losses, excess, moved = [], [], list[Array]()
    best = world.f(world.dual.policy(world.optimum))
    for _ in range(budget.rounds):
        base = np.log(world.reference) + world.learner.compared(labels.reward, 2.0) / BETA
        lambdas = np.array(state.multipliers) if weights is None else weights
        cost = world.learner.compared(labels.cost, SCORE_MAX) if arm == "comparisons" else None
        price = world.learner.measured(labels, lambdas) if cost is None else multiplier * cost
        policy = softmax(base - price / BETA, axis=1)
        losses.append(best - world.f(policy))
        excess.append(world.g(policy))
        moved.append(lambdas if cost is None else np.array([multiplier]))
        prompts = np.repeat(draws.integers(0, len(world.reward), budget.asked // 2), 2)
        answers = np.array([draws.choice(policy.shape[1], p=policy[x]) for x in prompts])
        drawn = labels_of(world, prompts, answers, draws)
        if cost is None:
            labels.measure(prompts, answers, drawn)
            learned = price[prompts, answers] if told else None
            if weights is None:
                means = [(str(i), float(mean)) for i, mean in enumerate(drawn.mean(axis=0))]
                seen = [CostEstimate(mean, 0.0, len(drawn), 1, "unsafe_rate", name) for name, mean in means]
                state, _ = ascend_all(state, seen, covariance(labels, prompts, answers, drawn, lambdas, learned))
        else:
            labels.spent += drawn.size
            multiplier = _moved(multiplier, policy, cost, float(drawn.mean() - world.limits[0]), budget.rounds)
        compared(world, labels, policy, budget.pairs, arm, draws)
    last = [np.mean(values[-LAST:], axis=0) for values in (losses, excess, moved)]
    return Run(float(last[0]), last[1], labels.spent, last[2])


def covariance(
    labels: Labels, prompts: Indices, answers: Indices, drawn: Array, multipliers: Array, learned: Array | None
) -> Array:
    """Covariance of the costs within prompts without the noise of labels: what repeated labels of an answer show, or
    what is told by sum_i lambda_i C_i of the answers as it was `learned` before [n]."""
    counts = labels.counts[prompts, answers][:, None]
    means = labels.sums[:, prompts, answers].T / counts
    groups = np.repeat(np.arange(len(prompts) // 2), 2).tolist()
    noise = np.where(counts > 1.0, means * (1.0 - means) * counts / np.maximum(counts - 1.0, 1.0), 0.0)
    if learned is not None:
        told = noise_beside_learned(drawn, learned, multipliers, groups)
        noise = np.where(np.isfinite(told), np.maximum(told, 0.0), noise)
    return within_covariance(drawn, groups, noise)


def _moved(multiplier: float, policy: Array, cost: Array, excess: float, rounds: int) -> float:
    """Damped Newton for the multiplier of fitted logits: a rate's slope in it is -Cov(rate, logit) / beta."""
    mean = np.sum(policy * cost, axis=1, keepdims=True)
    slope = max(float(np.mean(np.sum(policy * expit(cost) * (cost - mean), axis=1))), 1e-3)
    trust = 0.5 * (UPPER / 4.0) / np.sqrt(rounds)
    return float(np.clip(multiplier + np.clip(0.5 * BETA * excess / slope, -trust, trust), 0.0, UPPER / 4.0))


# --- the two studies ------------------------------------------------------------------------------------------------


def rates(where: str) -> None:
    """Gap of a limit on a rate, learned from values and from comparisons."""
    setting = SETTINGS[where]
    print(
        "| limit | gap, values | gap, comparisons | difference, 95 % interval | excess, values | comparisons | labels |"
    )
    print("|---|---|---|---|---|---|---|")
    for limit in (0.01, 0.05, 0.3):
        measured: dict[str, list[tuple[float, float, int]]] = {"values": [], "comparisons": []}
        for seed in range(SEEDS, SEEDS + setting.worlds):
            world = setting.world(seed, (limit,))
            for arm, gaps in measured.items():
                run = simulated(world, setting.budget, seed, arm)
                gaps.append((gap_of(world, run), float(run.excess[0]), run.labels))
        values, comparisons = (np.array(measured[arm]) for arm in ("values", "comparisons"))
        assert (values[:, 2] == comparisons[:, 2]).all()
        print(
            f"| {100 * limit:g} % | {values[:, 0].mean():.3f} | {comparisons[:, 0].mean():.3f} |"
            f" {_apart(comparisons[:, 0] - values[:, 0])} |"
            f" {100 * values[:, 1].mean():+.2f} % | {100 * comparisons[:, 1].mean():+.2f} % | {values[0, 2]:,.0f} |",
            flush=True,
        )


def _apart(differences: Array) -> str:
    """Mean over worlds with its 95 % interval by Student."""
    count = len(differences)
    mean, half = differences.mean(), student_half_width(float(differences.std(ddof=1)) / np.sqrt(count), count)
    return f"{mean:.3f} ({mean - half:.3f} to {mean + half:.3f})"


REWARD_WORLDS = 20
ARMS = ("comparisons", "numbers", "verdicts")
"""How a reward is learned: from pairs, from exact numbers, from yes-or-no labels that are yes with the chance
(r - low) / (high - low). A compared pair costs one label, measuring both of its answers two."""


def rewards(where: str) -> None:
    """Loss of f without any limit, of a reward learned from values and from comparisons."""
    setting = SETTINGS[where]
    measured = {arm: list[float]() for arm in ARMS}
    for seed in range(SEEDS, SEEDS + REWARD_WORLDS):
        world = setting.world(seed, (0.3,))
        for arm, losses in measured.items():
            losses.append(learned_reward(world, setting.budget, seed, arm))
    labels = setting.budget.offline + setting.budget.rounds * setting.budget.pairs
    comparisons = np.array(measured["comparisons"])
    print(f"{REWARD_WORLDS} worlds, {labels:,} labels each\n")
    print("| learned from | loss of f | less than from comparisons by, 95 % interval |\n|---|---|---|")
    print(f"| comparisons | {comparisons.mean():.3f} | |")
    for arm in ARMS[1:]:
        mine = np.array(measured[arm])
        print(f"| {arm} | {mine.mean():.3f} | {_apart(comparisons - mine)} |", flush=True)


def learned_reward(world: World, budget: Budget, seed: int, arm: str) -> float:
    """Loss of f, mean over the last rounds, of policies that follow the learned reward alone."""
    draws = np.random.default_rng([seed, 6])
    low, high = float(world.reward.min()), float(world.reward.max())
    # of a measured reward the scaled numbers stand where a rate's labels do
    labels, chances = Labels((len(world.reward), world.reward.shape[1]), 1), world.reference
    best, losses = world.f(world.dual.policy(np.zeros(len(world.limits)))), list[float]()
    for number in range(budget.rounds + 1):
        count = budget.pairs if number else budget.offline
        prompts = draws.integers(0, len(world.reward), count)
        asked = [(int(x), *(int(draws.choice(len(p[x]), p=p[x])) for p in (chances, world.reference))) for x in prompts]
        if arm == "comparisons":
            for x, a, b in asked:
                first = draws.random() < expit(world.reward[x, a] - world.reward[x, b])
                labels.reward.append((x, a, b) if first else (x, b, a))
        else:
            measured = ((x, y) for x, *ys in asked[::2] for y in ys)
            places, answers = (np.array(part) for part in zip(*measured, strict=True))
            numbers = (world.reward[places, answers] - low) / (high - low)
            given = numbers if arm == "numbers" else (draws.random(len(numbers)) < numbers).astype(np.float64)
            labels.measure(places, answers, given[:, None])
        scores = (
            world.learner.compared(labels.reward, 2.0)
            if arm == "comparisons"
            else world.learner.measured(labels, np.array([high - low]))
        )
        chances = softmax(np.log(world.reference) + scores / BETA, axis=1)
        losses.append(best - world.f(chances))
    return float(np.mean(losses[-LAST:]))


CLOSE = 0.35
"""A multiplier is near lambda* when it is at most this share of it away."""


def noise(where: str) -> None:
    """Multipliers and gap of a limit on a rate with one label an answer, by where the labels' noise is known from."""
    setting = SETTINGS[where]
    print(f"| limit | noise by | multiplier within {100 * CLOSE:g} % | off by, median | gap | excess | its size |")
    print("|---|---|---|---|---|---|---|")
    for limit in (0.01, 0.05, 0.3):
        gaps = list[Array]()
        for told in (False, True):
            rows = list[tuple[float, float, float]]()
            for seed in range(NOISE_SEEDS, NOISE_SEEDS + setting.worlds):
                world = setting.world(seed, (limit,))
                run = simulated(world, setting.budget, seed, "values", told=told)
                off = abs(float(run.multipliers[0]) / float(world.optimum[0]) - 1.0)
                rows.append((off, gap_of(world, run), 100.0 * float(run.excess[0])))
            off, gap, excess = np.array(rows).T
            gaps.append(gap)
            known_by, near = "what was learned" if told else "repeated labels", int((off <= CLOSE).sum())
            print(
                f"| {100 * limit:g} % | {known_by} | {near} of {len(off)} | {100 * np.median(off):.0f} % |"
                f" {gap.mean():.3f} | {excess.mean():+.2f} % | {np.abs(excess).mean():.2f} % |",
                flush=True,
            )
        print(f"\n{100 * limit:g} %: the gap is less by {_apart(gaps[0] - gaps[1])}\n", flush=True)


ALLOWED = 0.02
"""A run keeps its limits when no exact g is more than this above 0."""


def grid(where: str) -> None:
    """Three limits at once: the dual, and 27 fixed weight vectors with as many labels each."""
    setting = SETTINGS[where]
    levels = (0.5, 2.0, 8.0)
    print("| world | lambda* | gap, dual | its largest excess | vectors that keep all limits | best gap of these |")
    print("|---|---|---|---|---|---|")
    rows = []
    for seed in range(SEEDS, SEEDS + setting.grid_worlds):
        world = setting.world(seed, (0.05, 0.1, 0.3))
        dual = simulated(world, setting.budget, seed, "values")
        tried = [
            simulated(world, setting.budget, seed, "values", np.array(vector)) for vector in product(levels, repeat=3)
        ]
        kept = [gap_of(world, run) for run in tried if (run.excess <= ALLOWED).all()]
        rows.append((gap_of(world, dual), float(dual.excess.max()), len(kept), min(kept, default=np.nan)))
        own, worst, count, best = rows[-1]
        shown = "none" if np.isnan(best) else f"{best:.3f}"
        optimum = ", ".join(f"{value:.2f}" for value in world.optimum)
        print(f"| {seed} | {optimum} | {own:.3f} | {100 * worst:+.2f} % | {count} of 27 | {shown} |", flush=True)
    own, worst, counts, best = np.array(rows).T
    both = np.isfinite(best)
    print(
        f"\n{len(rows)} worlds. The dual keeps all limits (to {100 * ALLOWED:g} %) in {int((worst <= ALLOWED).sum())};"
        f" mean gap {own.mean():.3f}. Of 27 vectors {counts.mean():.1f} keep all on average ({counts.min():.0f} to"
        f" {counts.max():.0f}), none in {int((~both).sum())} worlds. Where some do, the best of them, chosen by the"
        f" truth, has mean gap {best[both].mean():.3f}, the dual {own[both].mean():.3f}: difference"
        f" {_apart((best - own)[both])}."
    )


def gap_of(world: World, run: Run) -> float:
    """Loss of f, and every violation at twice the sum of the optimal multipliers."""
    return run.loss + 2.0 * float(world.optimum.sum()) * float(np.maximum(run.excess, 0.0).sum())


if __name__ == "__main__":
    {"rates": rates, "rewards": rewards, "grid": grid, "noise": noise}[sys.argv[1]](sys.argv[2])
