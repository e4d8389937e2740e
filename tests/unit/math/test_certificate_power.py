"""Draws that certificates take: exact chances against simulation and the table; levels that never sum over."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddpo_ray.theory.certificates.certificate import candidate_level, first_certified, log_wealth, upper_bound
from pddpo_ray.theory.certificates.levels import Allocation
from pddpo_ray.theory.certificates.power import certified_rate, draws_needed

TABLE = [(0.01, 0.0, 450, 1_000), (0.01, 0.001, 720, 1_650), (0.01, 0.0025, 1_310, 2_930), (0.01, 0.005, 3_970, 7_950),
         (0.05, 0.025, 790, 1_540)]  # fmt: skip


@pytest.mark.parametrize(("limit", "rate", "first", "twelfth"), TABLE)
def test_draws_for_80_percent_power_are_those_of_the_table(limit: float, rate: float, first: int, twelfth: int) -> None:
    for number, draws in ((1, first), (12, twelfth)):
        assert draws_needed(limit, rate, candidate_level(0.05, number)) == pytest.approx(draws, rel=0.15)


@pytest.mark.parametrize(("limit", "rate", "level"), [(0.05, 0.01, 0.05), (0.3, 0.15, 0.01), (0.1, 0.0, 0.05)])
def test_the_chance_of_a_certificate_is_the_share_of_simulated_tests_that_get_one(
    limit: float, rate: float, level: float
) -> None:
    draws = draws_needed(limit, rate, level)
    assert draws is not None
    values = (np.random.default_rng(3).random((4_000, draws)) < rate).astype(float)
    certified = (log_wealth(values, limit) >= -math.log(level)).any(axis=1)
    before = (log_wealth(values[:, :-1], limit) >= -math.log(level)).any(axis=1)
    error = 3 * math.sqrt(0.8 * 0.2 / 4_000)
    assert float(certified.mean()) >= 0.8 - error
    assert float(before.mean()) <= 0.8 + error


def test_the_draws_for_a_power_are_the_first_after_which_all_outcomes_together_have_it() -> None:
    """By enumeration of every outcome of 1 to 9 draws."""
    limit, rate, level = 0.6, 0.2, 0.3
    chances = []
    for draws in range(1, 10):
        outcomes = np.array(list(itertools.product((0.0, 1.0), repeat=draws)))
        certified = (log_wealth(outcomes, limit) >= -math.log(level)).any(axis=1)
        failures = outcomes.sum(axis=1)
        chances.append(float((certified * rate**failures * (1 - rate) ** (draws - failures)).sum()))
    risen = [draws for draws in range(2, 10) if chances[draws - 1] > chances[draws - 2] + 1e-9]
    assert len(risen) >= 3
    for draws in risen:
        power = (chances[draws - 2] + chances[draws - 1]) / 2
        assert draws_needed(limit, rate, level, power) == draws


def test_without_failures_it_takes_as_many_draws_as_the_test_itself() -> None:
    assert draws_needed(0.01, 0.0, 0.05) == first_certified(np.zeros(1000), 0.01, 0.05)


def test_what_no_number_of_draws_certifies_is_said_at_once() -> None:
    assert draws_needed(0.05, 0.05, 0.05) is None
    assert draws_needed(0.05, 0.049, 0.05) is None
    assert draws_needed(0.05, 0.04, 0.05, most=50) is None


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 0.5), st.integers(50, 3_000), st.floats(0.01, 0.2))
def test_the_certified_rate_is_where_the_upper_bound_meets_the_limit(limit: float, draws: int, level: float) -> None:
    share = certified_rate(limit, draws, level)
    assert 0.0 <= share < limit
    whole = math.floor(share * draws)
    values = np.zeros(draws)
    values[: whole + 1] = 1.0
    assert upper_bound(values, limit, level) >= limit - 1e-9
    if share > 0:
        values[whole] = 0.0
        assert upper_bound(values, limit, level) <= limit + 1e-9


def test_levels_follow_the_allocation_and_end_where_it_is_used_up() -> None:
    assert Allocation().level(0.05, 3) == candidate_level(0.05, 3)
    fixed = Allocation((0.5, 0.25, 0.25))
    assert [fixed.level(0.1, k) for k in (1, 2, 3, 4)] == pytest.approx([0.05, 0.025, 0.025, 0.0])
    for level in (Allocation().level, fixed.level):
        with pytest.raises(ValueError, match="counted from 1"):
            level(0.05, 0)


@pytest.mark.parametrize("shares", [(0.6, 0.6), (0.5, 0.0), (), (0.5, -0.1), (float("nan"),)])
def test_an_allocation_that_spends_more_than_there_is_is_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="share"):
        Allocation(shares)
