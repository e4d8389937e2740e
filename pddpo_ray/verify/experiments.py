"""The theory's claims as experiments on the trap world (algorithms.md E2, E3), and the coverage of the intervals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit

from pddpo_ray.cost_estimate import (
    Mode,
    clipped_logit,
    estimate_from_scores,
    estimate_from_shares,
    expected_clipped_logit,
    interval,
    logit_bias,
)
from pddpo_ray.verify.checks import Check, at_least, at_most
from pddpo_ray.verify.methods import DEFAULT, NO_BONUS, OFFLINE, TABLE, Method, TheoryBonus
from pddpo_ray.verify.simulate import Trace, simulate
from pddpo_ray.worlds.tabular import TabularWorld, draw_answers, full_coverage, random_world

Array = NDArray[np.float64]
Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Curve:
    """Merit of the mixture over seeds, by round, and of the last policy without bonus."""

    method: Method
    merit: Array
    """[S, K]"""
    last: Array
    """[S]"""

    @property
    def final(self) -> float:
        return float(self.merit[:, -1].mean())

    @property
    def standard_error(self) -> float:
        return float(self.merit[:, -1].std(ddof=1) / math.sqrt(len(self.merit)))

    def row(self) -> dict[str, object]:
        """Plain values for `verify.json`."""
        return {
            "method": self.method.name,
            "rounds": self.merit.shape[1],
            "seeds": len(self.merit),
            "merit": self.final,
            "standard_error": self.standard_error,
            "merit_last": float(self.last.mean()),
        }


def curve(world: TabularWorld, method: Method, *, rounds: int, seeds: Sequence[int]) -> Curve:
    """Runs one method and measures it."""
    trace: Trace = simulate(world, method, rounds=rounds, seeds=seeds)
    merits = world.oracle.merit_values(trace.f_mixture, trace.g_mixture)
    return Curve(method, merits, world.oracle.merit_values(trace.f_last, trace.g_last)[:, -1])


def compare(
    world: TabularWorld, methods: Sequence[Method], *, rounds: int, seeds: Sequence[int], progress: Progress
) -> dict[str, Curve]:
    """Curves of several methods on the same seeds, by name."""
    curves = {}
    for method in methods:
        progress(f"{method.name}, {rounds} rounds, {len(seeds)} seeds")
        curves[method.name] = curve(world, method, rounds=rounds, seeds=seeds)
    return curves


def exploration_claims(world: TabularWorld, curves: dict[str, Curve], at_100: Curve) -> list[Check]:
    """What E2 shows about coverage, from runs of 300 rounds (and one of 100)."""
    merit = {name: found.final for name, found in curves.items()}
    stuck = merit[NO_BONUS.name]
    covered = world.oracle.covered_only(world.covered)
    gap = world.oracle.merit_of(covered.f, covered.g)
    corrected = merit["paper mode, scale 2"]
    return [
        at_most("default bonus, split: merit over that without bonus, K = 300", merit[DEFAULT.name] / stuck, 0.2),
        at_most("the same at K = 100", at_100.final / stuck, 0.5),
        at_most("offline PD-DPO: distance to the covered-only gap", abs(merit[OFFLINE.name] / gap - 1.0), 0.05),
        at_least("without bonus: merit over the covered-only gap", stuck / gap, 0.95),
        at_least(
            "uncentred over centred (paper mode, scale 2)", merit["paper mode, scale 2, uncentred"] / corrected, 1.5
        ),
        at_least(
            "printed over corrected cost loss (paper mode, scale 2)",
            merit["paper mode, scale 2, printed cost loss"] / corrected,
            1.2,
        ),
        at_least("theory bonus clipped at 2z over no bonus", merit["theory bonus clipped at 2z"] / stuck, 0.95),
    ]


def coverage_claims(world: TabularWorld, *, rounds: int, seeds: Sequence[int]) -> list[Check]:
    """Offline data: more of the same pairs do not help, covering pairs do; a wide baseline explores by itself."""
    oracle = world.oracle
    covered = oracle.covered_only(world.covered)
    gap = oracle.merit_of(covered.f, covered.g)
    more = dataclasses.replace(world, offline_pairs=40_000)
    wide = dataclasses.replace(world, baseline=oracle.reference)
    many = curve(more, OFFLINE, rounds=rounds, seeds=seeds).final
    full = curve(full_coverage(world, 40_000), OFFLINE, rounds=rounds, seeds=seeds).final
    explored = curve(wide, NO_BONUS, rounds=rounds, seeds=seeds).final
    return [
        at_most("offline with 40,000 pairs on the same answers: distance to the gap", abs(many / gap - 1.0), 0.05),
        at_most("offline with 40,000 pairs on all answers: merit over the gap", full / gap, 0.1),
        at_most("baseline = reference explores by itself: merit over the gap, no bonus", explored / gap, 0.25),
    ]


def interval_claims(*, simulations: int = 2000, seed: int = 0) -> list[Check]:
    """Coverage of the 95 % intervals in simulated estimates on a world with spread costs."""
    return [
        at_least(f"95 % interval covers the truth: {label}", coverage, 0.93)
        for label, coverage in (
            ("unsafe_rate, M = 1", interval_coverage("unsafe_rate", 1, simulations=simulations, seed=seed)),
            ("unsafe_rate, M = 8", interval_coverage("unsafe_rate", 8, simulations=simulations, seed=seed)),
            ("cost_model", interval_coverage("cost_model", 1, simulations=simulations, seed=seed)),
            ("logit_labels, M = 20", interval_coverage("logit_labels", 20, simulations=simulations, seed=seed)),
            ("logit_labels, M = 64", interval_coverage("logit_labels", 64, simulations=simulations, seed=seed)),
            (
                "logit_labels, M = 5 (expectation of the clipped logit)",
                interval_coverage("logit_labels", 5, simulations=simulations, seed=seed),
            ),
        )
    ]


def interval_coverage(
    mode: Mode,
    labels_each: int,
    *,
    costs: Sequence[float] = (-1.6, -0.9, -0.3, 0.2, 1.1),
    chances: Sequence[float] = (0.3, 0.3, 0.2, 0.15, 0.05),
    responses: int = 192,
    cost_max: float = 2.0,
    simulations: int = 2000,
    seed: int = 0,
) -> float:
    """Share of simulated estimates whose interval holds what it is about (see `cost_estimate.interval_warning`)."""
    generator = np.random.default_rng([seed, labels_each, responses])
    values, weights = np.asarray(costs), np.asarray(chances)
    truth = float(weights @ _target(mode, values, labels_each, cost_max))
    hits = 0
    for _ in range(simulations):
        drawn = values[draw_answers(weights[None], generator.random((responses, 1)))[:, 0]]
        if mode == "cost_model":
            estimate = estimate_from_scores(drawn)
        else:
            shares = generator.binomial(labels_each, expit(drawn)) / labels_each
            estimate = estimate_from_shares(shares, labels_each=labels_each, cost_max=cost_max, mode=mode)
        low, high = interval(estimate)
        hits += low <= truth <= high
    return hits / simulations


def _target(mode: Mode, costs: Array, labels_each: int, cost_max: float) -> Array:
    if mode == "unsafe_rate":
        return np.asarray(expit(costs))
    if mode == "logit_labels" and labels_each < 20:
        return expected_clipped_logit(costs, labels_each, cost_max)
    return costs


def bias_table() -> list[dict[str, float]]:
    """Largest bias for |c| <= 0.9 C and mean RMSE per response of the clipped logit (A5)."""
    rows = []
    for cost_max, labels in ((2.0, 1), (2.0, 5), (2.0, 20), (2.0, 50), (5.0, 1), (5.0, 20)):
        costs = np.linspace(-0.9 * cost_max, 0.9 * cost_max, 181)
        rows.append(
            {
                "cost_max": cost_max,
                "labels_each": float(labels),
                "largest_bias": float(np.abs(logit_bias(costs, labels, cost_max)).max()),
                "mean_rmse": float(np.mean(np.sqrt(_squared_error(costs, labels, cost_max)))),
            }
        )
    return rows


def _squared_error(costs: Array, labels_each: int, cost_max: float) -> Array:
    """E (clipped logit - c)^2 by the exact binomial sum."""
    counts = np.arange(labels_each + 1)
    values = clipped_logit(counts / labels_each, cost_max)
    chances = stats.binom.pmf(counts, labels_each, expit(costs)[:, None])
    return np.asarray(np.sum(chances * (values - costs[:, None]) ** 2, axis=1))


def e2_table(
    world: TabularWorld, *, seeds: Sequence[int], progress: Progress, horizons: Sequence[int] = (10, 30, 100, 300)
) -> list[dict[str, object]]:
    """Every row of E2 at K = 10, 30, 100, 300, each a run of its own (the step depends on K)."""
    rows = []
    for method in TABLE:
        progress(method.name)
        found = {rounds: curve(world, method, rounds=rounds, seeds=seeds) for rounds in horizons}
        merits = {f"merit_{rounds}": one.final for rounds, one in found.items()}
        errors = {f"se_{rounds}": one.standard_error for rounds, one in found.items()}
        rows.append({"method": method.name, **merits, **errors, "last": float(found[horizons[-1]].last.mean())})
    return rows


def random_worlds_table(*, worlds: int, progress: Progress, rounds: int = 200) -> list[dict[str, object]]:
    """Mixture merit and last merit over random worlds."""
    rows = []
    chosen = [method for method in TABLE if method.name in RANDOM_WORLD_ROWS]
    for method in chosen:
        progress(f"{method.name}, {worlds} random worlds")
        found = [curve(random_world(seed), method, rounds=rounds, seeds=[seed]) for seed in range(worlds)]
        merits = np.array([one.final for one in found])
        last = float(np.mean([one.last[0] for one in found]))
        error = float(merits.std(ddof=1) / math.sqrt(worlds))
        rows.append({"method": method.name, "merit": float(merits.mean()), "standard_error": error, "last": last})
    return rows


RANDOM_WORLD_ROWS = (
    OFFLINE.name,
    NO_BONUS.name,
    DEFAULT.name,
    "paper mode, scale 1",
    "paper mode, scale 2",
    "paper mode, scale 2, printed cost loss",
    "split, scale 2",
)


def theory_table(world: TabularWorld, *, progress: Progress, rounds: int = 1000) -> list[dict[str, object]]:
    """E3: the paper's constants with its number of pairs per round, exact costs and the reference as baseline."""
    wide = dataclasses.replace(world, baseline=world.oracle.reference)
    rows = []
    for gamma, pairs, centred, split in (
        (2.0, 1.3e9, False, False),
        (2.0, 1.3e9, True, False),
        (2.0, 1.3e9, True, True),
        (0.1, 5e11, True, False),
        (0.01, 5e13, True, False),
    ):
        name = (
            f"gamma {gamma:g}, {pairs:.2g} pairs, {'centred' if centred else 'uncentred'}{', split' if split else ''}"
        )
        progress(name)
        method = Method(
            name, k=1.0, split=split, centred=centred, theory=TheoryBonus(gamma=gamma),
            pairs_per_round=int(pairs), exact_cost=True,
        )  # fmt: skip
        found = curve(wide, method, rounds=rounds, seeds=[0])
        shown = sorted({min(k, rounds) for k in (10, 100, rounds)})
        rows.append({"method": name, **{f"merit_{k}": float(found.merit[0, k - 1]) for k in shown}})
    return rows
