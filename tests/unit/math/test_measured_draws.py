"""Draws as numbers in [0, 1]: scales by hand, exact expectations, biases by brute force, mixtures by enumeration."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import binom

from pddpo_ray.certificates import ledger
from pddpo_ray.theory.certificates.certificate import bets_below, lower_bound, upper_bound
from pddpo_ray.theory.certificates.measured_draws import (
    LOWER_WORST,
    UPPER_WORST,
    counted,
    mixture_decided,
    mixture_log_wealth,
    mixture_lower_bound,
    mixture_upper_bound,
    scaled,
    share_at_clip,
    with_people,
)
from pddpo_ray.theory.estimates.cost_estimate import bias_bound


def on_the_scale(limit: float, share: float) -> float:
    """A mean of people's values on the scale of `with_people`, as the run has it and by hand."""
    tested = ledger.TestedLimit("rude", limit, 0.05, 0.05, "rate", 1, 0.0, 1.0, "people", people=share)
    assert tested.to_unit(limit) == pytest.approx((limit - 1 + 1 / share) / (2 / share - 1))
    return tested.to_unit(limit)


def test_a_draw_without_a_number_counts_as_the_worst_for_each_bound() -> None:
    draws = [0.0, float("nan"), 0.0, 1.0]
    assert counted(draws, UPPER_WORST).tolist() == [0, 1, 0, 1]
    assert counted(draws, LOWER_WORST).tolist() == [0, 0, 0, 1]


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, float("nan")]), max_size=40), st.floats(0.05, 0.9))
def test_whatever_the_missing_numbers_turn_out_to_be_the_bounds_only_tighten(draws: list[float], limit: float) -> None:
    high = upper_bound(counted(draws, UPPER_WORST), limit, 0.05)
    low = lower_bound(counted(draws, LOWER_WORST), limit, 0.05)
    for truth in (0.0, 0.3, 1.0):
        assert upper_bound(counted(draws, truth), limit, 0.05) <= high + 1e-12
        assert lower_bound(counted(draws, truth), limit, 0.05) >= low - 1e-12


def test_means_are_scaled_by_their_stated_bounds_and_refused_beyond_them() -> None:
    assert scaled([-2.0, 20.0, 9.0], -2.0, 20.0).tolist() == [0.0, 1.0, 0.5]
    with pytest.raises(ValueError, match=r"21 lies outside the stated bounds \[-2, 20\]"):
        scaled([0.0, 21.0], -2.0, 20.0)
    with pytest.raises(ValueError, match="low below high"):
        scaled([0.0], 1.0, 1.0)


@pytest.mark.parametrize("share", [0.1, 0.25, 1.0])
def test_a_machine_with_people_beside_it_has_the_mean_of_people_whatever_the_machine_says(share: float) -> None:
    """E over the coin, summed by hand: q (f + (y - f)/q) + (1 - q) f = y."""
    for f, y in itertools.product((0.0, 0.2, 1.0), (0.0, 1.0)):
        with_coin, without = with_people([f, f], [y, y], [True, False], share)
        mean = share * with_coin + (1 - share) * without
        assert mean == pytest.approx(on_the_scale(y, share), abs=1e-12)
        assert 0.0 <= min(with_coin, without) <= max(with_coin, without) <= 1.0


def test_people_are_read_only_where_they_were_asked_and_a_missing_answer_stays_missing() -> None:
    values = with_people([0.5, 0.5], [float("nan"), float("nan")], [False, True], 0.5)
    assert values[0] == pytest.approx((0.5 + 1.0) / 3.0)
    assert np.isnan(values[1])
    with pytest.raises(ValueError, match="share"):
        with_people([0.0], [0.0], [True], 0.0)


def test_no_machine_saves_labels_of_people_on_rare_events() -> None:
    """2 % at 95 %: 149 people's labels without a failure (0.98^149 < 0.05), also beside a machine that never errs."""
    assert binom.cdf(0, 149, 0.02) < 0.05 < binom.cdf(0, 148, 0.02)
    share, limit = 0.2, 0.02
    draws = with_people(np.zeros(3000), np.zeros(3000), np.zeros(3000, dtype=bool), share)
    for people in (140, 200):
        bound = upper_bound(draws[: int(people / share)], on_the_scale(limit, share), 0.05)
        assert (bound <= on_the_scale(limit, share)) == (people == 200)


@pytest.mark.parametrize(("labels_each", "cost_max"), [(1, 2.0), (5, 2.0), (20, 3.0), (20, 8.0), (64, 5.0)])
def test_the_bias_bound_is_the_largest_that_an_answer_can_hide(labels_each: int, cost_max: float) -> None:
    """Brute force: sums over the binomial distribution on a grid ten times as fine."""
    costs = np.linspace(-cost_max, cost_max, 20_011)
    counts = np.arange(labels_each + 1)
    edge = expit(cost_max)
    shares = np.clip(counts / labels_each, 1 - edge, edge)
    estimates = np.log(shares / (1 - shares))
    expected = binom.pmf(counts, labels_each, expit(costs)[:, None]) @ estimates
    assert bias_bound(labels_each, cost_max) == pytest.approx(float(np.max(costs - expected)), abs=1e-5)
    assert bias_bound(labels_each, cost_max) == pytest.approx(float(np.max(expected - costs)), abs=1e-5)


def test_the_bias_bound_shrinks_with_labels_and_with_nothing_else() -> None:
    bounds = [bias_bound(labels, 2.0) for labels in (1, 5, 20, 100)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] == pytest.approx(2.0 - 2.0 * np.tanh(1.0), abs=1e-6)  # M = 1: E = C tanh(c/2)


def test_a_logit_that_its_bias_could_hide_has_no_limit_that_draws_can_show() -> None:
    tested = ledger.TestedLimit("cost", 0.0, 0.05, 0.05, "logit", 20, -2.0, 2.0, "labels")
    assert not replace(tested, limit=-1.7, labels_each=1).possible
    assert tested.possible
    assert tested.to_unit(tested.limit - tested.bias) == pytest.approx((2.0 - bias_bound(20, 2.0)) / 4.0)
    assert tested.draws([0.0, 0.5, 1.0]) == pytest.approx([0.0, 0.5, 1.0])
    assert share_at_clip([0.0, 0.5, 1.0, expit(1.9)], 2.0) == 0.5
    assert share_at_clip([], 2.0) == 0.0


def test_the_wealth_of_a_mixture_is_a_losing_game_wherever_the_mean_over_rounds_is_at_the_limit() -> None:
    """All outcomes of three rounds with two draws each, whose rates differ and average to the limit, by enumeration."""
    limit = 0.3
    for rates in ((0.3, 0.3, 0.3), (0.1, 0.3, 0.5), (0.0, 0.0, 0.9)):
        expected = 0.0
        for outcome in itertools.product((0.0, 1.0), repeat=6):
            table = np.asarray(outcome).reshape(3, 2)
            chance = np.prod([rate if z else 1 - rate for row, rate in zip(table, rates, strict=True) for z in row])
            expected += float(chance) * float(np.exp(mixture_log_wealth(table, limit)[-1]))
        assert expected == pytest.approx(1.0, abs=1e-12) if rates[0] == 0.3 else expected < 1.0


def test_a_mixture_is_looked_at_after_whole_rounds_of_equal_size() -> None:
    table = np.asarray([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    limit = 0.2
    for shape in (0.2, 0.35):
        by_hand = [
            np.log(np.mean([np.prod([(1 - c * z) / (1 - c * limit) for z in rows]) for c in bets_below(shape)]))
            for rows in (table[:1].ravel(), table.ravel())
        ]
        assert mixture_log_wealth(table, limit, shaped_for=None if shape == limit else shape) == pytest.approx(by_hand)
    assert mixture_upper_bound(table, limit, 0.05) == upper_bound(table.ravel(), limit, 0.05)
    with pytest.raises(ValueError, match="equally many draws"):
        mixture_log_wealth([[0.0, 1.0], [0.0]], limit)
    with pytest.raises(ValueError, match="rounds, draws"):
        mixture_upper_bound([], limit, 0.05)


def test_the_wealth_of_bets_on_a_higher_mean_is_a_losing_game_too() -> None:
    """The mirror image, and many tables at once as one by one."""
    limit = 0.4
    tables, expected = [], 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=4):
        table = np.asarray(outcome).reshape(2, 2)
        chance = np.prod([rate if z else 1 - rate for row, rate in zip(table, (0.2, 0.6), strict=True) for z in row])
        tables.append(table)
        expected += float(chance) * float(np.exp(mixture_log_wealth(table, limit, above=True)[-1]))
    assert expected < 1.0
    together = mixture_log_wealth(np.asarray(tables), limit, shaped_for=0.3)
    for path, table in zip(together, tables, strict=True):
        assert path == pytest.approx(mixture_log_wealth(table, limit, shaped_for=0.3))


def test_a_mixture_is_decided_at_the_end_of_its_last_round_alone() -> None:
    safe, unsafe = np.zeros((1, 40)), np.ones((1, 40))
    assert mixture_decided(safe, 0.2, 0.05)
    assert not mixture_decided(np.concatenate([safe, unsafe]), 0.2, 0.05)
    assert mixture_decided(np.concatenate([safe, unsafe]), 0.2, 0.05, above=True)
    mixed = np.concatenate([safe, unsafe])
    assert mixture_lower_bound(mixed, 0.2, 0.05) == lower_bound(mixed.ravel(), 0.2, 0.05)


def test_the_mixtures_certificate_holds_when_later_rounds_answer_to_earlier_draws() -> None:
    """400 runs of 12 rounds; a clean round makes the next one worse. False: certified with the mean at the limit."""
    generator, level, limit = np.random.default_rng(11), 0.05, 0.2
    wrong = 0
    for _ in range(400):
        rate, rates, rows = 0.2, [], []
        for _ in range(12):
            rows.append((generator.random(16) < rate).astype(float))
            rates.append(rate)
            rate = 0.35 if rows[-1].mean() < rate else 0.1
        path = mixture_log_wealth(np.asarray(rows), limit)
        means = np.cumsum(rates) / np.arange(1, 13)
        wrong += bool(np.any((path >= -np.log(level)) & (means >= limit)))
    assert wrong / 400 <= level + 2 * np.sqrt(level * (1 - level) / 400)


@pytest.mark.slow
def test_wealth_under_an_audit_of_exactly_n_of_a_round_is_on_average_at_most_that_of_peoples_own_mean() -> None:
    """Draws of two answers each, by enumeration of which answers people see, of what they and the machine say, and of
    bets. A machine that says the opposite makes the answers' corrections go both ways."""
    for machine in ((0.0, 1.0), (1.0, 0.0), (0.3, 0.9), (0.5, 0.5)):  # where people say no, and yes
        for rate, seen, draws in ((0.3, 1, 2), (0.3, 2, 2), (0.6, 3, 2), (0.2, 2, 3)):
            answers, share = 2 * draws, seen / (2 * draws)
            which = list(itertools.combinations(range(answers), seen))
            for bet in (0.1, 0.5, 0.9):
                mean_wealth = 0.0
                for said in itertools.product((0, 1), repeat=answers):
                    chance = float(np.prod([rate if one else 1 - rate for one in said]))
                    f = np.array([machine[one] for one in said])
                    for shown in which:
                        coins = np.isin(np.arange(answers), shown)
                        z = with_people(f, said, coins, share).reshape(-1, 2).mean(axis=1)
                        mean_wealth += chance * float(np.prod(1 - bet * z)) / len(which)
                assert mean_wealth <= (1 - bet * on_the_scale(rate, share)) ** draws + 1e-12
