"""Seconds of a plan, counted by hand."""

from __future__ import annotations

import pytest

from pddpo_ray.config import load
from pddpo_ray.plan.cost_model import work
from pddpo_ray.plan.hours import DRAWS, HANDED_S, PASSES, START_S, Texts, run_seconds, seconds_of

TEXTS = Texts(parameters=1_000_000, prompt=10.0, answer=30.0, pair=100.0)


def test_seconds_of_one_are_its_operations_over_those_of_a_second() -> None:
    one = TEXTS.seconds_of_one(cores=2)
    assert one["answers"] == pytest.approx(2e6 * 30 / (2 * DRAWS))
    assert one["features"] == one["scored"] == pytest.approx(2e6 * 40 / (2 * PASSES))
    assert one["fitted_pairs"] == pytest.approx(3 * 2e6 * 100 / (2 * PASSES))
    assert one["deliveries"] == HANDED_S


def test_seconds_of_a_stretch_are_counts_times_seconds_of_one() -> None:
    one = {"answers": 0.25, "features": 2.0, "fits": 3.0}
    stretch = {"answers": {"cost": 30, "candidate": 10}, "features": 6, "fits": 2, "tokens": 999}
    assert seconds_of(stretch, one) == pytest.approx(40 / 4 + 12 + 6)


def test_a_run_is_its_start_what_comes_before_its_rounds_and_the_certificates_draws() -> None:
    short, long = (load("text-world", [f"rounds={rounds}", "certificate.certify=never"]) for rounds in (1, 5))
    counted, one = work(long), TEXTS.seconds_of_one(1)
    first = START_S + seconds_of(counted["before"], one) + seconds_of(counted["first_round"], one)
    assert run_seconds(short, TEXTS, 1) == pytest.approx(first)
    assert run_seconds(long, TEXTS, 1) == pytest.approx(first + 4 * seconds_of(counted["round"], one))
    certified = load("text-world", ["rounds=1", "certificate={certify: end, draws: 400}"])
    assert run_seconds(certified, TEXTS, 1) == pytest.approx(first + 400 * one["answers"])
