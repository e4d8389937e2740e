"""How much of the past a fit sees, and what a run costs because of it."""

from __future__ import annotations

import numpy as np
import pytest

from pddpo_ray.config import BudgetRefit, UnionRefit
from pddpo_ray.config.sections.trainer import DeterminantRefit, GeometricRefit, Refit
from pddpo_ray.parts.fitting import older_rows
from pddpo_ray.records import PairRow
from pddpo_ray.theory.refit import full_rounds, is_power, limit_rows

OFFLINE, NEW = 1000, 100


def visits(policy: Refit, rounds: int) -> int:
    """Rows that the fits of a run see, one pass each."""
    total = 0
    for number in range(1, rounds + 1):
        older, new = (0, OFFLINE) if number == 1 else (OFFLINE + NEW * (number - 2), NEW)
        seen = older_rows(policy, number, new, {})
        total += new + (older if seen is None else min(seen, older))
    return total


def test_a_row_budget_makes_the_work_linear_in_the_rounds_and_the_union_makes_it_quadratic() -> None:
    def slope(policy: Refit) -> float:
        """Log-log slope of the work of later rounds in their number."""
        first, second, third = (visits(policy, rounds) for rounds in (2, 402, 1602))
        return float(np.log((third - first) / (second - first)) / np.log(1600 / 400))

    assert slope(BudgetRefit(rows=200, per_new=2.0)) == pytest.approx(1.0, abs=0.02)
    assert slope(UnionRefit()) > 1.8


def test_geometric_refits_cost_at_most_twice_the_last_union_and_the_budgets() -> None:
    rounds = 64
    geometric = GeometricRefit(rows=0, per_new=0.0)
    assert visits(geometric, rounds) <= 2 * (OFFLINE + NEW * rounds) + 7 * OFFLINE + NEW * rounds
    full = [number for number in range(1, 20) if older_rows(GeometricRefit(), number, NEW, {}) is None]
    assert full == [1, 2, 4, 8, 16]
    assert [n for n in range(1, 12) if is_power(n, 1.5)] == [1, 2, 3, 4, 6, 8]


def test_the_determinant_triggers_a_refit_when_it_doubled() -> None:
    logdets = {1: 0.0, 2: 0.5, 3: 0.8, 4: 0.9, 5: 3.0, 6: 3.1}
    # round 1 has seen nothing, round 2 is the first with a value; ln 2 = 0.69 more is there in round 4, then in round 6
    assert full_rounds(1.0, 7, logdets) == [1, 2, 4, 6]
    assert older_rows(DeterminantRefit(), 6, NEW, logdets) is None
    assert older_rows(DeterminantRefit(rows=10, per_new=1.0), 7, NEW, logdets) == 10 + NEW


def test_without_exploration_the_determinant_policy_sees_the_union() -> None:
    assert full_rounds(1.0, 3, {}) == [1, 2, 3]


def test_replayed_rows_stand_for_those_left_out() -> None:
    """The expected weighted loss over draws is the loss of the union."""
    values = np.random.default_rng([1]).normal(size=60)
    rows = [PairRow(str(i), (1,), (2,), (3,), round=int(i >= 50)) for i in range(60)]
    sums = []
    for draw in range(400):
        kept, _ = limit_rows(rows, (), 10, np.random.default_rng([2, draw]))
        assert len(kept) == 20
        sums.append(sum(row.weight * values[int(row.id)] for row in kept))
    assert np.mean(sums) == pytest.approx(values.sum(), abs=4 * np.std(sums) / 20)


def test_no_budget_means_new_rows_alone() -> None:
    rows = [PairRow(str(i), (1,), (2,), (3,), round=i) for i in range(3)]
    kept, _ = limit_rows(rows, (), 0, np.random.default_rng([1]))
    assert [row.id for row in kept] == ["2"]
