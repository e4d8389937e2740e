"""The dual's margin: as wide as the coming test, no wider than what can be reached, and in every rule's step."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import pytest

from pddpo_ray.backends.in_process import make_backends
from pddpo_ray.certificates import testing as certifying
from pddpo_ray.certificates.margins import coming_test, draws_rows, lowest_costs, margins
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import UserError
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.records import CostEstimate
from pddpo_ray.report.run_data import read_run
from pddpo_ray.report.sections.certificates import certificates
from pddpo_ray.theory.certificates.certificate import first_certified
from pddpo_ray.theory.certificates.levels import Allocation
from pddpo_ray.theory.certificates.power import allowed_failures, draws_needed, likely_rate, worst_law
from pddpo_ray.theory.multipliers.dual import (
    DampedNewton,
    DualState,
    LogMultiplier,
    ProjectedFixed,
    Rule,
    ascend,
    limit_state,
)
from tests.unit.loop.small_run import MEASURED, small

RATE = (
    "limits.cost={rate: {world: cost}, learned_from: comparisons}",
    "limits.cost.labels_each=1",
    "limits.cost.at_most=0.3",
    "dual.rule={kind: newton}",
)
ASKED = (*RATE, "dual.margin=certificate")


def test_a_policy_below_the_limit_by_the_half_width_is_certified_in_four_tests_of_five() -> None:
    """400 simulated tests of 2,000 draws at .3 less the half-width."""
    (tested,) = certifying.tested_limits(small(*ASKED), {}, 1)
    generator, share = np.random.default_rng(3), 0.3 - coming_test(tested, 2000).margin()
    failures = np.cumsum(generator.random((400, 2000)) < share, axis=1)
    certified = (failures <= allowed_failures(0.3, tested.level, 2000)).any(axis=1)
    assert 0.74 <= certified.mean() <= 0.92
    assert coming_test(tested, 200).margin() > 2 * coming_test(tested, 2000).margin() > 0


def test_the_margin_of_a_mean_follows_how_much_its_answers_differ() -> None:
    """Words between 0 and 96, at most 13.8: were answers of 0 or 96 words alone, 4.6 fewer would be needed."""
    length = "limits.length={mean: {world: cost}, at_most: 13.8, bounds: [0, 96]}"
    config = load("tabular-limits", [*MEASURED, length, "dual.margin=certificate", "certificate.draws=800"])
    margin = margins(config, {})["length"]
    assert margin.kept == pytest.approx(4.6, abs=0.1)
    state = limit_state(
        "length", rho=1.0, rule=DampedNewton(1, 0.1, 0.5), limit=13.8, margin=margin.kept, test=margin.test
    )
    ends = [state.margin_of(CostEstimate(11.0, spread / math.sqrt(128), 128, 1)) for spread in (0.0, 7.0, 13.0, 90.0)]
    assert ends == sorted(ends)
    assert 0.3 < ends[1] < 1.5
    assert ends[3] == margin.kept


@pytest.mark.parametrize("spread", [0.05, 0.2])
@pytest.mark.parametrize("law", ["worst", "beta"])
def test_four_tests_in_five_certify_a_mean_that_is_below_by_the_margin(law: str, spread: float) -> None:
    """1,000 simulated tests of 500 draws under a limit of 0.4; answers that are not the worst ones succeed oftener."""
    generator, mean = np.random.default_rng(5), likely_rate(0.4, 500, 0.05, spread=spread)
    if law == "worst":
        share, rest = worst_law(mean, spread)
        draws = np.where(generator.random((1000, 500)) < share, 1.0, rest)
    else:
        size = mean * (1 - mean) / spread**2 - 1
        draws = generator.beta(mean * size, (1 - mean) * size, (1000, 500))
    certified = np.mean([first_certified(row, 0.4, 0.05) is not None for row in draws])
    assert certified >= 0.75
    assert certified <= 0.93 or law == "beta"
    assert 0.4 - mean < 0.6 * (0.4 - likely_rate(0.4, 500, 0.05))


def test_the_margin_is_cut_to_half_of_what_can_be_reached_and_the_line_says_so() -> None:
    config = small(*ASKED, "certificate.draws=140")
    free, tight = margins(config, {})["cost"], margins(config, {"cost": 0.28})["cost"]
    assert free.kept == free.wanted > 0.05
    assert tight.kept == pytest.approx(0.01)
    aim = "the dual of cost aims at 29 %; the limit is at most 30 %"
    assert tight.line("cost", 0.3).startswith(f"{aim}: it can hardly be certified")
    assert "hardly" not in free.line("cost", 0.3)
    assert margins(config, {"cost": 0.4})["cost"].kept == 0.0


def test_a_number_is_taken_as_it_is_and_none_changes_no_digest() -> None:
    assert margins(small("dual.margin=0.25"), {})["cost"].kept == 0.25
    assert "margin" not in small().fixed_settings()["dual"]
    assert small("dual.margin=0.25").fixed_settings()["dual"]["margin"] == 0.25
    with pytest.raises(UserError, match=r"dual\.margin"):
        small("dual.margin=-0.1")
    with pytest.raises(UserError, match="cannot be certified by any number of draws"):
        margins(small("dual.margin=certificate", "limits.cost.at_most=-1.99"), {})


@pytest.mark.parametrize(
    "rule", [ProjectedFixed(16, 1.0, 2.0, step=0.3), DampedNewton(16, 0.2, 2.0), LogMultiplier(0.5)]
)
def test_a_step_with_a_margin_is_the_step_under_the_lower_limit(rule: Rule) -> None:
    estimate = CostEstimate(0.05, 0.1, 64, 4)
    with_margin = limit_state("cost", rho=1.0, rule=rule, limit=0.1, margin=0.2)
    lower = limit_state("cost", rho=1.0, rule=rule, limit=-0.1)
    after, under = (ascend(DualState((state,)), estimate)[0]["cost"] for state in (with_margin, lower))
    assert after.excess(estimate) == pytest.approx(0.15)
    assert after.multiplier == pytest.approx(under.multiplier)
    assert after.multiplier > 1.0


@pytest.mark.run
def test_a_run_aims_below_its_limit_says_so_and_ends_with_a_higher_multiplier(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quiet = ("report.tensorboard=false", "report.html=false", "feedback.responses=60")
    with caplog.at_level(logging.INFO, logger="pddpo_ray.driver.prepare"):
        run_recipe(small(*ASKED, *quiet, "dual.margin=0.15"), tmp_path / "margin")
    assert "the dual of cost aims 0.15 below the limit 0.3" in caplog.text
    section = certificates(read_run(tmp_path / "margin"))
    assert "Training aimed inside the limits, to leave room for the test: cost at " in section
    assert ">15 %</data> in place of 30 %." in section
    run_recipe(small(*RATE, *quiet), tmp_path / "plain")
    assert certificates(read_run(tmp_path / "plain")) == ""
    trace = {}
    for name in ("margin", "plain"):
        with open_folder(tmp_path / name) as journal:
            trace[name] = [step.multiplier_after for step in journal.dual_steps()]
    assert all(above > below for above, below in zip(trace["margin"], trace["plain"], strict=True))


def test_the_lowest_cost_of_a_world_is_that_of_its_best_answers(tmp_path: Path) -> None:
    backends = make_backends(small(), tmp_path)
    assert backends.world is not None
    oracle = backends.world.oracle
    by_hand = sum(p * min(row) for p, row in zip(oracle.prior, oracle.cost, strict=True))
    assert lowest_costs(backends) == pytest.approx({"cost": by_hand})


def test_a_plan_states_the_draws_of_the_first_and_of_a_late_candidate() -> None:
    """The published figures: 1,310 and 2,930 draws for 1 % at a true rate of .25 %."""
    rows = draws_rows(
        load("tabular", ["limits.cost={rate: {world: cost}, learned_from: comparisons}", "limits.cost.at_most=0.01"])
    )
    assert rows == [("cost", "at most 1 % at a true value of 0.25 %", "about 1,310 draws, candidate 12 about 2,930")]
    once = load(
        "tabular",
        [
            "limits.cost={rate: {world: cost}, learned_from: comparisons}",
            "limits.cost.at_most=0.01",
            "certificate.shares=[1.0]",
        ],
    )
    assert draws_rows(once)[0][2].endswith("candidate 12 over 50,000")


def test_a_dry_run_says_how_many_draws_a_mixture_takes_and_how_many_it_has() -> None:
    """Level delta times the share of candidates 1 and 2; 10 answers a round."""
    config = small(*RATE, "certificate.mixtures=[1, 3]", rounds=12)
    whole, tail = [row for row in draws_rows(config) if row[0].startswith("the mixture")]
    needed = [draws_needed(0.3, 0.25 * 0.3, Allocation().level(0.05, number), most=50_000) for number in (1, 2)]
    assert needed[0] is not None
    assert needed[1] is not None
    assert needed[0] < needed[1] < 100
    assert whole == (
        "the mixture of rounds 1 to 12",
        "cost at most 30 % at a true value of 7.5 %",
        f"about {needed[0]} draws; its rounds have 120",
    )
    assert tail[0] == "the mixture of rounds 3 to 12"
    assert tail[2] == f"about {needed[1]} draws; its rounds have 100"
    (short,) = (row for row in draws_rows(small(*RATE, "certificate.mixtures=[1]", rounds=2)) if "mixture" in row[0])
    assert short[2].endswith("its rounds have 20, too few")
