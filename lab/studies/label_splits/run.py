"""How to split labels between learning, the multiplier and the certificate, under a limit of 5 %.

    python -m lab.studies.label_splits.run tables      # 20 random tables
    python -m lab.studies.label_splits.run twin        # 8 drawn text worlds, log-linear policies

Learners are the ones of runs (limits/worlds.py) with the joint Newton step and its margin; order of tests and
tests are those of `pddpo_ray.theory`. Labels are simulated: a world takes seconds, and many splits are seen. A pair
costs a label about reward and on average one about the cost, an answer of the estimates one, a certificate's draw one.
Finished cells are kept in --out, so a broken study resumes where it was. The worlds from seed 3000 on were not used
before.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from lab.studies.limits.run import UPPER, compared, covariance, labels_of
from lab.studies.limits.worlds import BETA, Indices, Labels, World, table_world, twin_world
from pddpo_lab.worlds.tabular.world import draw_answers
from pddpo_ray.parts.dual_step import ascend_all
from pddpo_ray.records import Array, CostEstimate
from pddpo_ray.theory.certificates.levels import Allocation
from pddpo_ray.theory.certificates.measured_draws import mixture_log_wealth
from pddpo_ray.theory.certificates.power import allowed_failures, certified_rate, likely_rate
from pddpo_ray.theory.estimates.pooled import pooled_means, pooled_weights
from pddpo_ray.theory.multipliers.dual import DampedNewton, DualState, LimitState
from pddpo_ray.theory.output import in_order_of_test, shortfall

RESULTS = Path(__file__).parent / "results.json"
SEEDS, LIMIT, DELTA, NAME = 3000, 0.05, 0.05, "unsafe"
ROUNDS, CANDIDATES = 16, 3
TOTALS = (6_000, 12_000, 24_000, 48_000)


@dataclass(frozen=True)
class Split:
    """Shares of all labels: pairs that teach, answers that move the multiplier (and teach the cost), and draws that
    the certificate may ask for, for all candidates together."""

    pairs: float
    answers: float
    draws: float

    @property
    def name(self) -> str:
        return "/".join(f"{100 * share:.0f}" for share in (self.pairs, self.answers, self.draws))


SPLITS = (
    Split(0.25, 0.65, 0.1), Split(0.25, 0.5, 0.25), Split(0.5, 0.25, 0.25), Split(0.25, 0.25, 0.5),
    Split(0.1, 0.15, 0.75),
)  # fmt: skip
WORLDS: dict[str, tuple[Callable[[int, tuple[float, ...]], World], int]] = {
    "tables": (table_world, 20),
    "twin": (twin_world, 8),
}


@dataclass(frozen=True)
class Ended:
    """What a run ended with. Gaps and rates are exact; released is None where no candidate was certified."""

    released: int | None
    gap: float | None
    rate: float | None
    best: float | None
    """Gap of the best round that truly keeps the limit."""
    certifiable: float | None
    """Gap of the best round whose rate a test of this budget rather certifies than not."""
    tested: int
    labels: int
    draws: int
    optimum: float
    """lambda*"""
    mixture: bool
    """Whether the labels of the second half's answers certify the mixture of these rounds, as one more candidate."""
    mixture_rate: float


def played(world: World, seed: int, total: int, split: Split) -> Ended:
    """One run with a number of labels."""
    random = np.random.default_rng([seed, 7])
    each, asked = int(split.pairs * total / 3 / ROUNDS), 2 * int(split.answers * total / ROUNDS / 2)
    draws = int(split.draws * total / CANDIDATES)
    labels = Labels(world.reward.shape, 1)
    offline = int(split.pairs * total / 6)
    compared(world, labels, world.reference, offline, "values", random)
    margin = LIMIT - likely_rate(LIMIT, draws, _level(1))
    rule = DampedNewton(ROUNDS, BETA, 0.5)
    state = DualState((LimitState(NAME, 1.0, UPPER / 4.0, LIMIT, rule, margin=min(margin, LIMIT / 2.0)),))
    tables, answered = list[Array](), list[tuple[Indices, Indices, Array]]()
    base = np.log(world.reference)
    for _ in range(ROUNDS):
        base = np.log(world.reference) + world.learner.compared(labels.reward, 2.0) / BETA
        multipliers = np.array(state.multipliers)
        price = world.learner.measured(labels, multipliers)
        tables.append(softmax(base - price / BETA, axis=1))
        prompts = np.repeat(random.integers(0, len(world.reward), asked // 2), 2)
        answers = draw_answers(tables[-1][prompts], random.random(asked))
        drawn = labels_of(world, prompts, answers, random)
        labels.measure(prompts, answers, drawn)
        answered.append((prompts, answers, drawn[:, 0]))
        recent = covariance(labels, prompts, answers, drawn, multipliers, price[prompts, answers])
        seen = CostEstimate(float(drawn.mean()), 0.0, len(drawn), 1, "unsafe_rate", NAME)
        state, _ = ascend_all(state, [seen], recent)
        compared(world, labels, tables[-1], each, "values", random)
    order = ordered(np.array(tables), log_softmax(base, axis=1), answered, draws)
    rates = np.array([LIMIT + float(world.g(table)[0]) for table in tables])
    released, tested, spent = tests(rates, order, draws, random)
    best = world.f(world.dual.policy(world.optimum))
    gaps = np.array([best - world.f(table) for table in tables])
    half = ROUNDS // 2
    rows = np.array([values.reshape(-1, 2).mean(axis=1) for _, _, values in answered[half:]])
    return Ended(
        released,
        None if released is None else float(gaps[released]),
        None if released is None else float(rates[released]),
        _least(gaps, rates <= LIMIT),
        _least(gaps, rates <= certified_rate(LIMIT, draws, _level(1))),
        tested,
        labels.spent + offline + each * ROUNDS + spent,
        spent,
        float(world.optimum[0]),
        bool((mixture_log_wealth(rows, LIMIT) >= -np.log(_level(CANDIDATES + 1))).any()),
        float(rates[half:].mean()),
    )


def ordered(tables: Array, reward: Array, answered: list[tuple[Indices, Indices, Array]], draws: int) -> list[int]:
    """Rounds in the order of their tests, as runs order them. tables [K, X, Y], reward policy's logarithms [X, Y]"""
    prompts, answers, values = (np.concatenate(column) for column in zip(*answered, strict=True))
    author = np.repeat(np.arange(len(tables)), [len(one[0]) for one in answered])
    log_probs = np.log(np.maximum(tables[:, prompts, answers], 1e-300))
    weights = pooled_weights(log_probs, author)
    rates = pooled_means(weights, values)
    helpful = pooled_means(weights, BETA * (reward[prompts, answers] - log_probs))
    reachable = {NAME: likely_rate(LIMIT, draws, _level(1))}
    short = {k: shortfall({NAME: float(rate)}, reachable, {NAME: LIMIT}) for k, rate in enumerate(rates)}
    return in_order_of_test(short, dict(enumerate(helpful.tolist())))


def tests(rates: Array, order: list[int], draws: int, random: np.random.Generator) -> tuple[int | None, int, int]:
    """Who is certified first, how many were tested, and the draws that it took."""
    spent = 0
    for number, k in enumerate(order[:CANDIDATES], start=1):
        failures = np.cumsum(random.random(draws) < rates[k])
        certified = failures <= allowed_failures(LIMIT, _level(number), draws)
        if certified.any():
            return k, number, spent + int(np.argmax(certified)) + 1
        spent += draws
    return None, min(len(order), CANDIDATES), spent


def _level(number: int) -> float:
    return Allocation().level(DELTA, number)


def _least(gaps: Array, among: NDArray[np.bool_]) -> float | None:
    return float(gaps[among].min()) if among.any() else None


# --- the tables -------------------------------------------------------------------------------------------------------


def table(cells: Mapping[str, Mapping[str, Any]], where: str) -> str:
    """A row per number of labels and split. A run that released nothing ranks behind all others."""
    lines = [
        "| labels | pairs/answers/draws | released | unsafe over 5 % | gap, median | quarter above | ratio, median |"
        " at most 1.15 | against certifiable | labels used |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for total in TOTALS:
        for split in SPLITS:
            mine = [Ended(**cell) for key, cell in cells.items() if key.startswith(f"{where}/{total}/{split.name}/")]
            if not mine:
                continue
            ended = [one for one in mine if one.gap is not None and one.best is not None]
            gaps = [np.inf if one.gap is None else one.gap for one in mine]
            ratios = [np.inf if one.gap is None else one.gap / (one.best or one.gap) for one in mine]
            near = [one.gap / one.certifiable for one in ended if one.gap is not None and one.certifiable]
            wrong = sum(one.rate is not None and one.rate > LIMIT for one in mine)
            lines.append(
                f"| {total:,} | {split.name} | {len(ended)} of {len(mine)} | {wrong} | {_shown(np.median(gaps))} |"
                f" {_shown(np.quantile(gaps, 0.75, method='higher'))} | {_shown(np.median(ratios), 2)} |"
                f" {sum(ratio <= 1.15 for ratio in ratios)} | {_shown(np.median(near) if near else np.inf, 2)} |"
                f" {np.median([one.labels for one in mine]):,.0f} |"
            )
    return "\n".join(lines)


def _shown(value: float | np.floating[Any], digits: int = 3) -> str:
    return "none" if not np.isfinite(value) else f"{value:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", choices=list(WORLDS))
    parser.add_argument("--worlds", type=int)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    make, worlds = WORLDS[asked.where]
    cells: dict[str, dict[str, Any]] = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    for seed in range(SEEDS, SEEDS + (asked.worlds or worlds)):
        keys = {f"{asked.where}/{total}/{split.name}/{seed}": (total, split) for total in TOTALS for split in SPLITS}
        if set(keys) <= set(cells):
            continue
        world = make(seed, (LIMIT,))
        cells |= {key: asdict(played(world, seed, *cell)) for key, cell in keys.items() if key not in cells}
        asked.out.write_text(json.dumps(cells, indent=1) + "\n")
    print(table(cells, asked.where))
    mine = [Ended(**cell) for key, cell in cells.items() if key.startswith(asked.where)]
    said = [one for one in mine if one.mixture]
    print(
        f"\nThe mixture of the last {ROUNDS // 2} rounds is certified in {len(said)} of {len(mine)} runs,"
        f" {sum(one.mixture_rate > LIMIT for one in said)} of them above the limit."
    )


if __name__ == "__main__":
    main()
