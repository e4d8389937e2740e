"""C8: what K rounds cost, and what a row budget gives away.

Row visits are counted from the refit policies themselves; the loss gap is that of real fits: a small model learns
preferences that arrive in rounds, once on the union of all rounds, once on the budget, and both are scored on pairs
that neither has seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from bench.ratio import Ratio, of_pairs
from bench.workload import language_model
from pddpo_ray.config import BudgetRefit, UnionRefit
from pddpo_ray.config.sections.trainer import Refit
from pddpo_ray.contracts import FitSettings
from pddpo_ray.parts.fitting import older_rows
from pddpo_ray.records import Objective, PairRow, PolicyVersion
from pddpo_ray.theory.refit import limit_rows
from pddpo_ray.training.batches import texts_of
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.fit import FrozenColumns, run_fit
from pddpo_ray.training.passes.log_probs import ResponseScorer, score_texts

OFFLINE, NEW, ROUNDS, EPOCHS, BATCH, BETA = 96, 32, 12, 2, 16, 0.2
BUDGET = BudgetRefit(rows=0, per_new=2.0)


def visits(policy: Refit, rounds: int, offline: int = OFFLINE, new: int = NEW) -> int:
    """Rows that the fits of a run see in one pass each."""
    total = 0
    for number in range(1, rounds + 1):
        older, fresh = (0, offline) if number == 1 else (offline + new * (number - 2), new)
        seen = older_rows(policy, number, fresh, {})
        total += fresh + (older if seen is None else min(seen, older))
    return total


def slope(policy: Refit) -> float:
    """Log-log slope of the work after the first round, from 8 to 32 rounds."""
    first = visits(policy, 1)
    return float(np.log((visits(policy, 32) - first) / (visits(policy, 8) - first)) / np.log(31 / 7))


def run(repeats: int = 5, name: str = "C8") -> Ratio:
    """Row visits of the union over those of the budget at 32 rounds; loss gap and both slopes are in the details.

    Visits and slopes are counts, the same at every repeat; the losses are medians over as many drawn worlds.
    """
    torch.set_num_threads(1)
    worlds = [_world(seed) for seed in range(repeats)]
    union, budget = (np.array([_held_out_loss(world, policy) for world in worlds]) for policy in (UnionRefit(), BUDGET))
    gaps = budget / union - 1
    details = {
        "slope of the union": slope(UnionRefit()),
        "slope of the budget": slope(BUDGET),
        "held-out loss, union": float(np.median(union)),
        "held-out loss, budget": float(np.median(budget)),
        "gap": float(np.median(gaps)),
        "largest gap": float(gaps.max()),
    }
    pairs = [(float(visits(UnionRefit(), 32)), float(visits(BUDGET, 32)))]
    return of_pairs(name, "row visits of 32 rounds: fits on the union / on a row budget", pairs, details=details)


@dataclass(frozen=True)
class World:
    """Labelled rows of all rounds, and pairs to be scored on."""

    rows: list[PairRow]
    held_out: list[PairRow]


def _world(seed: int) -> World:
    """Bradley-Terry labels of answers whose true score is a sum over their words."""
    rng = np.random.default_rng([8, seed])
    worth = rng.normal(size=64) * 0.8

    def answer() -> tuple[int, ...]:
        return (*rng.integers(3, 64, 5).tolist(), 2)

    def row(index: int, round_: int) -> PairRow:
        one, other = answer(), answer()
        ahead = worth[list(one)].sum() - worth[list(other)].sum()
        chosen, rejected = (one, other) if rng.random() < 1 / (1 + np.exp(-ahead)) else (other, one)
        return PairRow(f"{round_}-{index}", (1, 3 + index % 20), chosen, rejected, round_)

    rows = [row(i, 0) for i in range(OFFLINE)]
    rows += [row(i, number) for number in range(1, ROUNDS) for i in range(NEW)]
    return World(rows, [row(i, 99) for i in range(400)])


def _held_out_loss(world: World, policy: Refit) -> float:
    """Loss on the held-out pairs after the last round's fit."""
    reference = language_model(64, 0, hidden=64, layers=2, heads=2)
    texts = list(dict.fromkeys(texts_of([*world.rows, *world.held_out])))
    scored = dict(zip(texts, score_texts(ResponseScorer(reference), texts).tolist(), strict=True))
    engine = TorchEngine(ResponseScorer(language_model(64, 0, hidden=64, layers=2, heads=2)))
    objective = Objective("reward", PolicyVersion(0, "reference", "", ""), BETA)
    for number in range(1, ROUNDS + 1):
        known = [row for row in world.rows if row.round < number]
        fresh = sum(row.round == number - 1 for row in known)
        older = older_rows(policy, number, fresh, {})
        kept, _ = limit_rows(known, (), older, np.random.default_rng([8, number]))
        steps = -(-EPOCHS * len(kept) // BATCH)
        settings = FitSettings(
            steps=steps,
            learning_rate=1e-3 if number == 1 else 5e-4,
            batch_pairs=BATCH,
            support=0.0,
        )
        engine.begin(settings)
        run_fit(engine, objective, kept, FrozenColumns(scored, {}), settings, number)
    own = [(row.prompt, answer) for row in world.held_out for answer in (row.chosen, row.rejected)]
    ratios = (score_texts(engine.scorer, own) - np.array([scored[text] for text in own])).reshape(-1, 2)
    return float(np.logaddexp(0, -BETA * (ratios[:, 0] - ratios[:, 1])).mean())
