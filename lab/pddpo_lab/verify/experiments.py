"""The theory's claims as experiments on the trap world (docs/paper.md), and the intervals' coverage."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import stats
from scipy.special import expit

from pddpo_lab.verify.checks import Check, at_least, at_most
from pddpo_lab.verify.methods import EXACT, NO_BONUS, OFFLINE, SHIPPED, TABLE, Method, TheoryBonus
from pddpo_lab.verify.pieces import Pieces, Row
from pddpo_lab.verify.simulate import Trace, simulate
from pddpo_lab.worlds.tabular.world import TabularWorld, draw_answers, full_coverage, random_world
from pddpo_ray.records import Array
from pddpo_ray.theory.estimates.cost_estimate import Mode, clipped_logit, estimate_from_shares
from pddpo_ray.theory.estimates.estimate_interval import interval

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Curve:
    """Gap of the mixture over seeds, by round, and of the last policy without bonus."""

    method: Method
    gap: Array
    """Of the marginal mixture's f and g. [S, K]"""
    last: Array
    """[S]"""
    mean: Array
    """Of the mean of the rounds' f and g, the quantity that the proofs bound; at least `gap`. [S, K]"""

    @property
    def final(self) -> float:
        return float(self.gap[:, -1].mean())

    @property
    def standard_error(self) -> float:
        return float(self.gap[:, -1].std(ddof=1) / math.sqrt(len(self.gap)))

    def row(self) -> dict[str, object]:
        """Plain values for `verify.json`."""
        return {
            "method": self.method.name,
            "rounds": self.gap.shape[1],
            "seeds": len(self.gap),
            "gap": self.final,
            "standard_error": self.standard_error,
            "gap_last": float(self.last.mean()),
        }


def curve(world: TabularWorld, method: Method, *, rounds: int, seeds: Sequence[int]) -> Curve:
    """Runs one method and measures it."""
    trace: Trace = simulate(world, method, rounds=rounds, seeds=seeds)
    gaps = world.oracle.gap_values(trace.f_mixture, trace.g_mixture)
    mean_f = np.cumsum(trace.f_policy, axis=1) / np.arange(1, rounds + 1)
    last = world.oracle.gap_values(trace.f_last, trace.g_last)[:, -1]
    return Curve(method, gaps, last, world.oracle.gap_values(mean_f, trace.g_mixture))


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
    """What E2 shows about coverage, from runs of 300 rounds (and one of 100 as runs do it)."""
    gaps = {name: one.final for name, one in curves.items()}
    stuck = gaps[NO_BONUS.name]
    covered = world.oracle.covered_only(world.covered)
    covered_gap = world.oracle.gap_of(covered.f, covered.g)
    corrected = gaps["paper mode, scale 2"]
    return [
        at_most(
            "O-PD-DPO as runs do it comes much closer to the optimum than without a bonus, after 300 rounds.",
            "O-PD-DPO as runs do it: gap over that without bonus, K = 300",
            gaps[SHIPPED.name] / stuck,
            0.35,
        ),
        at_most("It does so after 100 rounds already.", "the same at K = 100", at_100.final / stuck, 0.5),
        at_most(
            "Drawn exactly from the optimistic policy, it comes closer still.",
            "exact optimistic draw: gap over that without bonus, K = 300",
            gaps[EXACT.name] / stuck,
            0.2,
        ),
        at_most(
            "Offline PD-DPO ends at the oracle on covered answers, no closer to the optimum.",
            "offline PD-DPO: distance to the covered-only gap",
            abs(gaps[OFFLINE.name] / covered_gap - 1.0),
            0.05,
        ),
        at_least(
            "Without a bonus, rounds of new pairs come no closer than that oracle.",
            "without bonus: gap over the covered-only gap",
            stuck / covered_gap,
            0.95,
        ),
        at_least(
            "Centred features explore better than uncentred ones.",
            "uncentred over centred (paper mode, scale 2)",
            gaps["paper mode, scale 2, uncentred"] / corrected,
            1.5,
        ),
        at_least(
            "The cost loss as it runs here explores better than the printed one.",
            "printed over corrected cost loss (paper mode, scale 2)",
            gaps["paper mode, scale 2, printed cost loss"] / corrected,
            1.2,
        ),
        at_least(
            "The theory's bonus, once clipped, explores no better than none.",
            "theory bonus clipped at 2z over no bonus",
            gaps["theory bonus clipped at 2z"] / stuck,
            0.95,
        ),
    ]


def coverage_claims(world: TabularWorld, *, rounds: int, seeds: Sequence[int]) -> list[Check]:
    """Offline data: more of the same pairs do not help, covering pairs do; a wide baseline explores by itself."""
    oracle = world.oracle
    covered = oracle.covered_only(world.covered)
    covered_gap = oracle.gap_of(covered.f, covered.g)
    more = dataclasses.replace(world, offline_pairs=40_000)
    wide = dataclasses.replace(world, baseline=oracle.reference)
    many = curve(more, OFFLINE, rounds=rounds, seeds=seeds).final
    full = curve(full_coverage(world, 40_000), OFFLINE, rounds=rounds, seeds=seeds).final
    explored = curve(wide, NO_BONUS, rounds=rounds, seeds=seeds).final
    return [
        at_most(
            "More offline pairs of the same answers come no closer to the optimum.",
            "offline with 40,000 pairs on the same answers: distance to the covered-only gap",
            abs(many / covered_gap - 1.0),
            0.05,
        ),
        at_most(
            "Offline pairs of all answers come close to the optimum.",
            "offline with 40,000 pairs on all answers: gap over the covered-only gap",
            full / covered_gap,
            0.1,
        ),
        at_most(
            "A baseline that writes every answer explores without a bonus.",
            "baseline = reference explores by itself: gap over the covered-only gap, no bonus",
            explored / covered_gap,
            0.25,
        ),
    ]


def interval_claims(*, simulations: int = 2000, seed: int = 0) -> list[Check]:
    """Coverage of the 95 % intervals in simulated estimates on a world with spread costs."""
    return [
        at_least(
            "The 95 % interval of a round's estimated cost holds the true cost as often as it says.",
            f"95 % interval covers the truth: {label}",
            coverage,
            0.93,
        )
        for label, coverage in (
            ("unsafe_rate, M = 1", interval_coverage("unsafe_rate", 1, simulations=simulations, seed=seed)),
            ("unsafe_rate, M = 8", interval_coverage("unsafe_rate", 8, simulations=simulations, seed=seed)),
            ("logit_labels, M = 20", interval_coverage("logit_labels", 20, simulations=simulations, seed=seed)),
            ("logit_labels, M = 64", interval_coverage("logit_labels", 64, simulations=simulations, seed=seed)),
            ("logit_labels, M = 5", interval_coverage("logit_labels", 5, simulations=simulations, seed=seed)),
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
    """Share of simulated estimates whose interval holds the expected cost, or the expected rate."""
    generator = np.random.default_rng([seed, labels_each, responses])
    values, weights = np.asarray(costs), np.asarray(chances)
    truth = float(weights @ (expit(values) if mode == "unsafe_rate" else values))
    hits = 0
    for _ in range(simulations):
        drawn = values[draw_answers(weights[None], generator.random((responses, 1)))[:, 0]]
        shares = generator.binomial(labels_each, expit(drawn)) / labels_each
        estimate = estimate_from_shares(shares, labels_each=labels_each, cost_max=cost_max, mode=mode)
        ends = interval(estimate)
        hits += ends is not None and ends[0] <= truth <= ends[1]
    return hits / simulations


def bias_table() -> list[dict[str, float]]:
    """Largest bias for |c| <= 0.9 C and mean RMSE (paper.md §5) of the clipped logit and of Anscombe's one.

    A round's estimate averages over many responses, so the bias counts for more than the variance: the clip wins.
    """
    rows = []
    for cost_max, labels in ((2.0, 1), (2.0, 5), (2.0, 20), (2.0, 50), (5.0, 1), (5.0, 20)):
        counts = np.arange(labels + 1)
        clip = bias_and_rmse(clipped_logit(counts / labels, cost_max), cost_max)
        smooth = bias_and_rmse(np.clip(np.log((counts + 0.5) / (labels - counts + 0.5)), -cost_max, cost_max), cost_max)
        rows.append(
            {
                "cost_max": cost_max,
                "labels_each": float(labels),
                "largest_bias": clip[0],
                "mean_rmse": clip[1],
                "largest_bias_anscombe": smooth[0],
                "mean_rmse_anscombe": smooth[1],
            }
        )
    return rows


def bias_and_rmse(values: Array, cost_max: float) -> tuple[float, float]:
    """Largest bias for |c| <= 0.9 C and mean RMSE of the estimates by number of unsafe labels [M + 1], exactly."""
    counts, costs = np.arange(len(values)), np.linspace(-0.9 * cost_max, 0.9 * cost_max, 181)
    chances = stats.binom.pmf(counts, len(values) - 1, expit(costs)[:, None])
    bias = chances @ values - costs
    squared = np.sum(chances * (values - costs[:, None]) ** 2, axis=1)
    return float(np.abs(bias).max()), float(np.mean(np.sqrt(squared)))


def e2_table(
    world: TabularWorld,
    *,
    seeds: Sequence[int],
    progress: Progress,
    horizons: Sequence[int] = (10, 30, 100, 300),
    pieces: Pieces | None = None,
) -> list[Row]:
    """Every row of E2: one run of the longest horizon, read at each of them, its gap that of the mean f and g."""
    kept = pieces or Pieces()

    def row(method: Method) -> Row:
        progress(f"{method.name}, {len(seeds)} seeds")
        measured = curve(world, method, rounds=horizons[-1], seeds=seeds)
        at = {k: _mean_and_error(measured.mean[:, k - 1]) for k in horizons}
        last, last_error = _mean_and_error(measured.last)
        return {
            "method": method.name,
            **{f"gap_{k}": mean for k, (mean, _) in at.items()},
            **{f"se_{k}": error for k, (_, error) in at.items()},
            "marginal": measured.final,
            "se_marginal": measured.standard_error,
            "last": last,
            "se_last": last_error,
        }

    return [kept.row(f"e2 {method.name} {len(seeds)}x{horizons[-1]}", partial(row, method)) for method in TABLE]


def _mean_and_error(values: Array) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def random_worlds_table(
    *, worlds: int, progress: Progress, rounds: int = 200, pieces: Pieces | None = None
) -> list[Row]:
    """Mixture gap and last gap over random worlds."""
    kept = pieces or Pieces()

    def row(method: Method) -> Row:
        progress(f"{method.name}, {worlds} random worlds")
        curves = [curve(random_world(seed), method, rounds=rounds, seeds=[seed]) for seed in range(worlds)]
        gap, error = _mean_and_error(np.array([one.final for one in curves]))
        last = float(np.mean([one.last[0] for one in curves]))
        return {"method": method.name, "gap": gap, "standard_error": error, "last": last}

    chosen = [method for method in TABLE if method.name in RANDOM_WORLD_ROWS]
    return [kept.row(f"random worlds {m.name} {worlds}x{rounds}", partial(row, m)) for m in chosen]


RANDOM_WORLD_ROWS = (
    OFFLINE.name,
    NO_BONUS.name,
    EXACT.name,
    "paper mode, scale 1",
    "paper mode, scale 2",
    "paper mode, scale 2, printed cost loss",
    "split, scale 2",
)


def theory_table(
    world: TabularWorld, *, progress: Progress, rounds: int = 1000, pieces: Pieces | None = None
) -> list[Row]:
    """E3: the paper's constants with its number of pairs per round, exact costs and the reference as baseline."""
    wide, kept = dataclasses.replace(world, baseline=world.oracle.reference), pieces or Pieces()

    def row(method: Method) -> Row:
        progress(method.name)
        gaps = curve(wide, method, rounds=rounds, seeds=[0]).mean[0]
        shown = sorted({min(k, rounds) for k in (10, 100, rounds)})
        return {"method": method.name, **{f"gap_{k}": float(gaps[k - 1]) for k in shown}}

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
        method = Method(
            name, k=1.0, split=split, centred=centred, theory=TheoryBonus(gamma=gamma),
            pairs_per_round=int(pairs), exact_cost=True,
        )  # fmt: skip
        rows.append(kept.row(f"e3 {name} {rounds}", partial(row, method)))
    return rows
