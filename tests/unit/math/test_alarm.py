"""The alarm after a release: against its definition by brute force, and by its false and its true alarms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddpo_ray.theory.certificates.alarm import Alarm
from pddpo_ray.theory.certificates.certificate import bets_above


def after(alarm: Alarm, values: object) -> Alarm:
    for value in np.asarray(values):
        alarm = alarm.after(float(value))
    return alarm


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=25), st.floats(0.02, 0.8))
def test_the_recursion_is_the_mixture_of_a_bet_started_at_every_answer(values: list[float], limit: float) -> None:
    """A_t = mean_j sum_{s <= t} w_s prod_{i=s..t} (1 + b'_j (Z_i - d)), b'_j = (rho'_j - 1) / (1 - d)."""
    bets = bets_above(limit) / (1 - bets_above(limit) * (1 - limit))
    total = 0.0
    for bet in bets:
        for start in range(1, len(values) + 1):
            gained = math.prod(1 + bet * (value - limit) for value in values[start - 1 :])
            total += gained / (start * (start + 1)) / len(bets)
    assert after(Alarm(limit, 0.05), values).evidence == pytest.approx(total, rel=1e-9)


@pytest.mark.slow
def test_false_alarms_are_rarer_than_the_level_over_a_long_time() -> None:
    """10,000 releases whose true rate is the limit, 1,500 measured answers each."""
    generator, level, limit, runs = np.random.default_rng(8), 0.1, 0.05, 10_000
    values = generator.random((runs, 1_500), dtype=np.float32) < limit
    bets = bets_above(limit)
    wealth = np.zeros((runs, len(bets)))
    rang = np.zeros(runs, dtype=bool)
    for t in range(1, 1_501):
        gain = (1 - bets * (1 - values[:, t - 1 : t])) / (1 - bets * (1 - limit))
        wealth = (wealth + 1 / (t * (t + 1))) * gain
        rang |= wealth.mean(axis=1) >= 1 / level
    assert float(rang.mean()) <= level + 2 * math.sqrt(level * (1 - level) / runs)
    sure = int(np.argmax(wealth.mean(axis=1)))
    assert after(Alarm(limit, level), values[sure]).evidence == pytest.approx(float(wealth[sure].mean()), rel=1e-6)


def test_a_rise_after_a_quiet_time_is_found_with_a_delay_that_hardly_grows_with_it() -> None:
    generator, limit, level = np.random.default_rng(9), 0.05, 0.05
    bad = (generator.random(3_000) < 0.2).astype(float)
    delays = []
    for quiet in (10, 1_000, 10_000):
        alarm = after(Alarm(limit, level), np.zeros(quiet))
        assert not alarm.rings
        rung = after(alarm, bad)
        assert rung.rang_at is not None
        delays.append(rung.rang_at - quiet)
    assert delays[2] - delays[1] <= 3 * (delays[1] + 20)
    assert delays[2] < 500


def test_an_alarm_stays_on_and_survives_any_number_of_failures() -> None:
    alarm = after(Alarm(0.05, 0.05), [1.0] * 2_000)
    assert alarm.rings
    assert alarm.rang_at is not None
    assert math.isfinite(alarm.evidence)
    assert after(alarm, [0.0] * 500).rang_at == alarm.rang_at


def test_values_and_levels_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="in \\[0, 1\\]"):
        Alarm(0.1, 0.05).after(float("nan"))
    with pytest.raises(ValueError, match="false alarm"):
        Alarm(0.1, 1.0)
