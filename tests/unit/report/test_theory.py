"""The theory panel against the printed table of the bound, and against random games."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddpo_ray.report.run_data import read_run
from pddpo_ray.report.sections.theory import ascent_bound, assumptions, half_width, rate_so_far
from pddpo_ray.theory.estimates.estimate_interval import interval
from tests.unit.report.synthetic import recipe, write_run


@pytest.mark.parametrize(
    ("rounds", "printed"), [(10, 0.48), (30, 0.28), (100, 0.15), (300, 0.088), (1000, 0.048), (3000, 0.028)]
)
def test_regret_bound_equals_the_printed_table(rounds: int, printed: float) -> None:
    """lambda_1 = rho = 0.7585, C = 2, eta = lambda_1 / (C sqrt K): the bound is lambda_1 C / sqrt K."""
    rho = 0.7585
    bound = ascent_bound(rho, 0.0, 2 * rho, [rho / (2.0 * math.sqrt(rounds))] * rounds, 2.0)
    assert bound == pytest.approx(rho * 2.0 / math.sqrt(rounds))
    assert bound == pytest.approx(printed, rel=0.02)


def test_gap_bound_equals_the_theorems_form() -> None:
    """(lambda_1 - 2 rho)^2 C / (2 lambda_1 sqrt K) + lambda_1 C / (2 sqrt K)."""
    rho, first, cost_max, rounds = 1.0, 0.5, 2.0, 64
    expected = ((first - 2 * rho) ** 2 / first + first) * cost_max / (2 * math.sqrt(rounds))
    etas = [first / (cost_max * math.sqrt(rounds))] * rounds
    assert ascent_bound(first, 2 * rho, 2 * rho, etas, cost_max) == pytest.approx(expected)


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.booleans(),
    st.floats(0.05, 1.0),
)
def test_no_sequence_of_costs_beats_the_bound(seed: int, rounds: int, shrinking: bool, step: float) -> None:
    """Projected ascent against arbitrary costs in [-C, C], with constant and with uneven steps."""
    draws = np.random.default_rng(seed)
    cost_max, upper = 2.0, 2.0
    multiplier = first = float(draws.uniform(0, upper))
    etas = [step / math.sqrt(k + 1) if shrinking else step * float(draws.uniform(0.2, 1.0)) for k in range(rounds)]
    earned = {0.0: 0.0, upper: 0.0}
    for eta in etas:
        g = float(draws.choice([-cost_max, cost_max, draws.uniform(-cost_max, cost_max)]))
        for target in earned:
            earned[target] += (target - multiplier) * g
        multiplier = min(max(multiplier + eta * g, 0.0), upper)
    for target, total in earned.items():
        assert total / rounds <= ascent_bound(first, target, upper, etas, cost_max) + 1e-9


def test_violation_and_regret_so_far_are_the_means_of_the_journal(finished_run: Path) -> None:
    run = read_run(finished_run)
    rate = rate_so_far(run)
    assert rate is not None
    f = [values["exact/f_policy"] for values in run.metrics.values()]
    g = [values["exact/g_policy"] for values in run.metrics.values()]
    assert rate.rounds == 6
    assert rate.violation == pytest.approx(np.mean(g))
    assert rate.regret == pytest.approx(run.result["f_optimum"] - np.mean(f))
    assert rate.estimate == pytest.approx(np.mean([step.estimate.value for step in run.dual]))
    # six rounds of one standard error of 0.06; what their labels hide of the logits is as wide as in one round
    assert rate.estimate_ends is not None
    one = replace(run.steps[-1].estimate, value=rate.estimate)
    pooled = interval(replace(one, standard_error=0.06 / math.sqrt(6), responses=6 * one.responses))
    assert rate.estimate_ends == pytest.approx(pooled)
    endless = interval(replace(one, standard_error=0.0, responses=10**9))
    assert endless is not None
    assert rate.estimate_ends[1] - rate.estimate_ends[0] > endless[1] - endless[0] > 0.0
    # eta = 1/8 in the fixture, rho = 1, C = 2: ((0 - 1)^2 / (2 * 6 / 8)) + 4 / 16
    assert rate.regret_bound == pytest.approx(1 / (2 * 6 / 8) + 0.25)
    assert rate.violation_bound == pytest.approx(1 / (2 * 6 / 8) + 0.25)


@pytest.mark.slow
def test_another_rule_is_measured_against_the_papers(tmp_path: Path) -> None:
    """lambda_1 = 1, rho = 1, C = 2, K = 4: the paper's rule guarantees lambda_1 C / sqrt K = 1 in both."""
    base = recipe(4)
    changes = {"dual": {**base["dual"], "rule": {"kind": "newton"}}}
    run = read_run(write_run(tmp_path / "run", rounds=4, changes=changes))
    rate = rate_so_far(run)
    assert rate is not None
    assert not rate.own_rule
    assert rate.violation_bound == pytest.approx(1.0)
    assert rate.regret_bound == pytest.approx(1.0)
    found = next(item for item in assumptions(run) if item.name.startswith("λ moves"))
    assert (found.state, found.why) == ("not met", "the rule is newton")


def test_more_answers_shrink_the_interval_but_not_what_their_labels_cannot_tell(finished_run: Path) -> None:
    run = read_run(finished_run)
    found = interval(run.steps[-1].estimate)
    assert found is not None
    now, fourfold, many, more, endless = (half_width(run, factor) for factor in (1.0, 4.0, 64.0, 256.0, 1e8))
    assert now == pytest.approx((found[1] - found[0]) / 2)
    assert now is not None
    assert fourfold is not None
    assert many is not None
    assert more is not None
    assert endless is not None
    assert now > fourfold > many > more > endless >= 0.0
    # the standard error shrinks to a half, what was not seen to a quarter; money is split among more stakes
    assert 0.25 <= (more - endless) / (many - endless) <= 0.6


def test_premises_of_a_known_world(finished_run: Path) -> None:
    found = {item.name.split(",")[0]: item.state for item in assumptions(read_run(finished_run))}
    assert found == {
        "rewards and costs are bounded by R and C": "met",
        "labels follow Bradley-Terry and Bernoulli models of the true scores": "met",
        "some policy is strictly below the limit": "met",
        "ρ is at least λ*": "met",
        "λ moves by projected ascent with a step fixed in advance": "met",
        "each cost estimate is of the round's own policy": "met",
        "each answer has its full number of labels": "met",
        "every fit reaches the minimum of its loss over the bounded class": "not checkable",
        "pairs come from the optimistic policy itself by a valid bonus (needed by online methods only)": "not met",
        "the offline pairs alone cover the best policy (needed by offline methods on tables only)": "not met",
    }


def test_the_theorems_bonus_is_drawn_exactly_and_its_scale_is_for_the_reader_to_check(tmp_path: Path) -> None:
    changes = {"explore": {"bonus": "theorem", "scale": 223.0}}
    run = read_run(write_run(tmp_path / "run", rounds=2, changes=changes))
    found = next(item for item in assumptions(run) if item.name.startswith("pairs come"))
    assert (found.state, "k = 223" in found.why) == ("not checkable", True)


def test_without_a_world_nothing_is_claimed_that_cannot_be_known(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", rounds=3, known=False))
    states = [item.state for item in assumptions(run)]
    # the labels, their authors and the rule of the multiplier are on record; the truth is not
    assert states.count("not checkable") >= 5
    rate = rate_so_far(run)
    assert rate is not None
    assert rate.violation is None
    assert rate.regret is None


def test_missing_labels_are_a_premise_not_met(tmp_path: Path) -> None:
    changes = {"limits": {"cost": {"logit": {"world": "cost"}, "at_most": 0.0, "labels_each": 5}}}
    run = read_run(write_run(tmp_path / "run", rounds=2, changes=changes))
    found = next(item for item in assumptions(run) if item.name == "each answer has its full number of labels")
    assert (found.state, found.why) == ("not met", "48 of 48 answers have another number")
