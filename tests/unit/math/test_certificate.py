"""Betting certificates against 60-digit arithmetic, exact binomial tails, brute force, and 10,000 simulated tests."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

import pddpo_ray
from pddpo_ray.theory.certificates.certificate import (
    RHO,
    bets_above,
    bets_below,
    candidate_level,
    first_certified,
    first_rejected,
    log_wealth,
    lower_bound,
    upper_bound,
)

ORACLE = json.loads((Path(__file__).parents[2] / "data" / "certificates.json").read_text())


def test_the_bets_are_those_of_the_oracle() -> None:
    assert pytest.approx(ORACLE["rho"]) == list(RHO)


@pytest.mark.parametrize("case", ORACLE["cases"], ids=lambda case: f"{case['limit']}-{len(case['values'])}")
def test_ten_cases_computed_with_60_digits(case: dict[str, Any]) -> None:
    values, limit, level = case["values"], case["limit"], case["level"]
    assert pddpo_ray.first_certified(values, limit, level) == case["first_certified"]
    assert pddpo_ray.upper_bound(values, limit, level) == pytest.approx(case["upper_bound"], rel=1e-9)
    wealth = float(np.exp(log_wealth(np.asarray(values), limit)[-1]))
    assert wealth == pytest.approx(case["e_value_at_limit"], rel=1e-9)


def test_the_wealth_is_a_fair_game_at_the_limit_and_a_losing_one_above_it() -> None:
    """E over all sequences of 12 coin tosses, summed with fractions: 1 at the limit, less above it."""
    limit = 0.25
    bets = [Fraction(float(bet)) for bet in bets_below(limit)]
    for chance, sign in ((Fraction(1, 4), 0), (Fraction(1, 3), -1)):
        expected = Fraction(0)
        for bet in bets:
            per_draw = (chance * (1 - bet) + (1 - chance)) / (1 - bet * Fraction(1, 4))
            expected += per_draw**12 / len(bets)
        assert (expected == 1) if sign == 0 else (expected < 1)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=0, max_size=60),
    st.floats(0.01, 0.95),
    st.sampled_from([0.01, 0.05, 0.3]),
)
def test_bounds_enclose_and_agree_with_the_first_look_that_certifies(
    values: list[float], limit: float, level: float
) -> None:
    upper, lower = upper_bound(values, limit, level), lower_bound(values, limit, level)
    assert 0.0 <= lower <= upper <= 1.0
    taken = first_certified(values, limit, level)
    if taken is not None:
        assert upper_bound(values[:taken], limit, level) <= limit + 1e-9
        assert upper_bound(values[: taken - 1], limit, level) > limit - 1e-9
    rejected = first_rejected(values, limit, level)
    if rejected is not None:
        assert lower_bound(values[:rejected], limit, level) >= limit - 1e-9


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.05, 0.9))
def test_the_mirror_bets_are_the_promised_ones(values: list[float], limit: float) -> None:
    """prod (1 + b_j (Z - d)), b_j = (rho'_j - 1) / (1 - d), rho' = 1 / rho, those with rho' d <= 0.99."""
    times = [1 / rho for rho in RHO if limit / rho <= 0.99] or [(1 + 1 / limit) / 2]
    expected = np.mean([np.prod([1 + (t - 1) / (1 - limit) * (z - limit) for z in values]) for t in times])
    assert np.exp(log_wealth(np.asarray(values), limit, above=True)[-1]) == pytest.approx(expected, rel=1e-9)
    assert ((bets_above(limit) >= 0) & (bets_above(limit) < 1)).all()


@pytest.mark.slow
def test_a_false_certificate_is_as_rare_as_its_level_although_every_draw_is_looked_at() -> None:
    """10,000 runs with the true rate at the limit, 1.1 and 2 times it: at most 5 % + 2 standard errors certify."""
    generator = np.random.default_rng(20)
    for factor in (1.0, 1.1, 2.0):
        draws = (generator.random((10_000, 400)) < 0.05 * factor).astype(float)
        bets = bets_below(0.05)
        gains = [np.cumsum(np.log1p(-bet * draws) - np.log1p(-bet * 0.05), axis=1) for bet in bets]
        best = np.max(np.logaddexp.reduce(gains, axis=0) - np.log(len(bets)), axis=1)
        luckiest = int(np.argmax(best))
        assert first_certified(draws[luckiest], 0.05, 0.999 * float(np.exp(-best[luckiest]))) is None
        assert first_certified(draws[luckiest], 0.05, 1.001 * float(np.exp(-best[luckiest]))) is not None
        share = float(np.mean(best >= np.log(20)))
        assert share <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 10_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "rate", "candidate", "draws"),
    [(0.01, 0.0, 1, 450), (0.01, 0.001, 1, 720), (0.01, 0.0025, 1, 1310), (0.05, 0.025, 1, 790),
     (0.01, 0.0, 12, 1000), (0.01, 0.001, 12, 1650), (0.05, 0.025, 12, 1540)],
)  # fmt: skip
def test_draws_for_80_percent_power_are_within_15_percent_of_the_table(
    limit: float, rate: float, candidate: int, draws: int
) -> None:
    generator = np.random.default_rng([7, candidate])
    level = candidate_level(0.05, candidate)
    values = (generator.random((1_000, int(1.6 * draws))) < rate).astype(float)
    bets = bets_below(limit)
    gains = [np.cumsum(np.log1p(-bet * values) - np.log1p(-bet * limit), axis=1) for bet in bets]
    path = np.maximum.accumulate(np.logaddexp.reduce(gains, axis=0) - np.log(len(bets)), axis=1)
    reached = (path >= -np.log(level)).mean(axis=0)
    needed = int(np.argmax(reached >= 0.8)) + 1
    assert needed == pytest.approx(draws, rel=0.15)


def test_no_failure_at_all_needs_more_draws_than_the_exact_binomial_test_of_one_look() -> None:
    """With one look 299 draws without a failure show 1 % at 95 % (0.99^299 < 0.05); looking always costs some more."""
    assert binom.cdf(0, 299, 0.01) < 0.05 < binom.cdf(0, 298, 0.01)
    taken = first_certified(np.zeros(1000), 0.01, 0.05)
    assert taken is not None
    assert 299 < taken < 450


def test_levels_of_all_candidates_sum_to_delta() -> None:
    total = sum(candidate_level(0.05, k) for k in range(1, 200_001))
    assert total == pytest.approx(0.05, rel=1e-4)
    assert total < 0.05


@pytest.mark.parametrize("values", [[0.5, float("nan")], [0.1, 1.2], [-1e-9], [[0.1, 0.2]]])
def test_values_that_are_no_share_are_refused(values: Any) -> None:
    for function in (upper_bound, first_certified, lower_bound, first_rejected):
        with pytest.raises(ValueError, match="values must"):
            function(values, 0.1, 0.05)


@pytest.mark.parametrize(("limit", "level"), [(0.0, 0.05), (1.0, 0.05), (0.1, 0.0), (0.1, 1.0), (float("nan"), 0.05)])
def test_limits_and_levels_that_nothing_can_certify_are_refused(limit: float, level: float) -> None:
    with pytest.raises(ValueError, match=r"limit|level"):
        first_certified([0.0], limit, level)


def test_no_values_say_nothing() -> None:
    assert (upper_bound([], 0.1, 0.05), lower_bound([], 0.1, 0.05), first_certified([], 0.1, 0.05)) == (1.0, 0.0, None)


def test_a_mean_above_the_limit_is_rejected_and_bounded_from_below() -> None:
    """The mirror image: bets on 1 - Z against a limit of 1 - d, with Z in {0, 1} and a single bet by hand."""
    values = [1.0] * 40
    assert first_rejected(values, 0.5, 0.05) is not None
    assert first_rejected([0.0] * 40, 0.5, 0.05) is None
    assert 0.5 < lower_bound(values, 0.5, 0.05) < 1.0
    assert lower_bound([0.0] * 40, 0.5, 0.05) == 0.0
    assert candidate_level(0.1, 2) == pytest.approx(0.6 / (math.pi**2 * 4))
