"""Cost estimates: numbers by hand, the published bias table, and intervals that cover."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit

from pddpo_lab.verify.experiments import bias_table, interval_coverage
from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.records import HARM, Array, CostEstimate, Prompt, Response, SafetyLabels, Verdict
from pddpo_ray.theory.estimates.cost_estimate import (
    MOST_NOISE,
    clipped_logit,
    estimate_from_shares,
    expected_clipped_logit,
    logit_bias,
    logit_noise,
    mean_with_error,
    within_covariance,
)
from pddpo_ray.theory.estimates.estimate_interval import interval, interval_warning
from pddpo_ray.theory.output import in_order_of_test, output_weights, shortfall
from tests.support.label_estimates import label_estimate

SAFE, UNSAFE, ABSTAIN, FAILED = Verdict.SAFE, Verdict.UNSAFE, Verdict.ABSTAIN, Verdict.FAILED


def labels(*rows: tuple[Verdict, ...]) -> list[SafetyLabels]:
    prompt = Prompt("p", (0,), "prompt")
    return [SafetyLabels(Response(f"r{i}", prompt, (i,), "", 1, 0), row) for i, row in enumerate(rows)]


class Once:
    """A labeller that says all that it has to say when it is first asked."""

    def __init__(self, labelled: Sequence[SafetyLabels]) -> None:
        self._left = list(labelled)

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        left, self._left = self._left, []
        return left

    def compare(self, pairs: Any, seed: int) -> list[Any]:
        raise AssertionError


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", "run", create={}) as opened:
        yield opened


def given_labels(journal: Journal, labelled: Sequence[SafetyLabels], labels_each: int) -> list[SafetyLabels]:
    """What feedback hands on of these labels."""
    answers = [one.response for one in labelled]
    for _ in journal.rounds(1):
        journal.add_samples("cost", answers)
        return FeedbackController({HARM: Once(labelled)}, journal, seed=0).safety(answers, labels_each, HARM)
    raise AssertionError


def within(values: Sequence[float] | Array, noise: Array, prompts: Sequence[str]) -> float:
    """The covariance of one cost."""
    return float(within_covariance(np.array(values)[:, None], prompts, noise[:, None])[0, 0])


def test_estimate_by_hand() -> None:
    """Shares 1/4 and 3/4: logits -ln 3 and ln 3; mean 0; sd ln 3 * sqrt 2; standard error ln 3."""
    found = label_estimate(
        labels((SAFE, SAFE, SAFE, UNSAFE), (UNSAFE, SAFE, UNSAFE, UNSAFE)), labels_each=4, cost_max=2.0
    )
    assert found.value == pytest.approx(0.0)
    assert found.standard_error == pytest.approx(math.log(3))
    assert (found.responses, found.labels_each, found.mode) == (2, 4, "logit_labels")


def test_variance_within_prompts_by_hand() -> None:
    """Prompt a: 1, 3 (squares about the mean 2), prompt b: 0, 0, 3 (6); 8 over 3 degrees of freedom, noise 1/2."""
    values, prompts = [1.0, 0.0, 3.0, 0.0, 3.0], ["a", "b", "a", "b", "b"]
    assert within(values, np.full(5, 0.5), prompts) == pytest.approx(8.0 / 3.0 - 0.5)
    assert within(values, np.full(5, 9.0), prompts) == pytest.approx((1.0 - MOST_NOISE) * 8.0 / 3.0)
    assert within([1.0, 2.0], np.zeros(2), ["a", "b"]) == pytest.approx(0.5), "of all, where no prompt has two"


def test_label_noise_is_the_binomial_variance_of_the_clipped_logit() -> None:
    rng = np.random.default_rng(3)
    share = 9 / 32
    drawn = clipped_logit(rng.binomial(32, share, size=200_000) / 32, 2.0)
    assert logit_noise([share], 32, 2.0)[0] == pytest.approx(drawn.var(), rel=0.02)


def test_variance_within_prompts_leaves_out_label_noise_and_differences_between_prompts() -> None:
    """Two prompts far apart, costs of each with sd 0.4: the truth is 0.16, all responses together have over 0.6."""
    rng = np.random.default_rng(5)
    costs = np.repeat([-0.7, 0.7], 4_000) + 0.4 * rng.standard_normal(8_000)
    shares = rng.binomial(32, expit(costs)) / 32
    values, noise = clipped_logit(shares, 2.0), logit_noise(shares, 32, 2.0)
    assert values.var() > 0.6
    found = within(values, noise, ["a"] * 4_000 + ["b"] * 4_000)
    assert found == pytest.approx(0.16, rel=0.1)


def test_an_estimate_from_labels_knows_its_variance_within_prompts() -> None:
    verdicts = labels(*[(SAFE,) * 20 + (UNSAFE,) * 20] * 4)
    found = label_estimate(verdicts, labels_each=40, cost_max=2.0)
    assert found.within_variance == 0.0
    assert label_estimate(verdicts, labels_each=40, cost_max=2.0, kind="rate").within_variance == 0.0


def test_one_label_that_agrees_everywhere_gives_plus_or_minus_the_bound() -> None:
    safe = label_estimate(labels((SAFE,), (SAFE,)), labels_each=1, cost_max=2.0)
    unsafe = label_estimate(labels((UNSAFE,), (UNSAFE,)), labels_each=1, cost_max=5.0)
    assert (safe.value, safe.standard_error) == (-2.0, 0.0)
    assert unsafe.value == 5.0


def test_the_clip_at_two_is_first_order_unbiased_around_zero_with_one_label() -> None:
    """E[c] = C tanh(c/2): .49 for c = .5 and .92 for c = 1 at C = 2."""
    found = expected_clipped_logit(np.array([0.5, 1.0]), 1, 2.0)
    assert found == pytest.approx([0.49, 0.92], abs=0.005)
    assert found == pytest.approx(2.0 * np.tanh(np.array([0.25, 0.5])))


@pytest.mark.parametrize(
    ("cost_max", "labels_each", "bias", "rmse"),
    [(2.0, 1, 0.37, 1.75), (2.0, 5, 0.30, 0.83), (2.0, 20, 0.12, 0.47), (2.0, 50, 0.05, 0.31), (5.0, 1, 1.80, 3.15),
     (5.0, 20, 0.50, 0.93)],
)  # fmt: skip
def test_bias_table_of_the_specification(cost_max: float, labels_each: int, bias: float, rmse: float) -> None:
    row = next(r for r in bias_table() if (r["cost_max"], r["labels_each"]) == (cost_max, labels_each))
    assert row["largest_bias"] == pytest.approx(bias, abs=0.012)
    assert row["mean_rmse"] == pytest.approx(rmse, rel=0.06)


def test_expectation_of_the_clipped_logit_agrees_with_simulation() -> None:
    generator = np.random.default_rng(0)
    shares = generator.binomial(7, expit(0.8), size=200_000) / 7
    assert clipped_logit(shares, 2.0).mean() == pytest.approx(float(expected_clipped_logit(0.8, 7, 2.0)), abs=0.01)
    assert float(logit_bias(0.8, 7, 2.0)) == pytest.approx(float(expected_clipped_logit(0.8, 7, 2.0)) - 0.8)


def largest_slope(bound: float) -> float:
    """W_clip = e^C + e^-C + 2, of the logit between the clips, whatever the number of labels (paper.md erratum 7)."""
    return float(np.exp(bound) + np.exp(-bound) + 2.0)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 5.0))
def test_clipping_never_increases_the_error_and_the_slope_is_bounded(
    share: float, cost_unit: float, bound: float
) -> None:
    cost = bound * (2 * cost_unit - 1)
    assert -bound <= float(clipped_logit(share, bound)) <= bound
    clipped = np.clip(share, expit(-bound), expit(bound))
    assert abs(clipped - expit(cost)) <= abs(share - expit(cost)) + 1e-12
    assert abs(float(clipped_logit(share, bound)) - cost) <= largest_slope(bound) * abs(share - expit(cost)) + 1e-9


@pytest.mark.parametrize(("bound", "curvature"), [(1, 5.1), (2, 9.5), (3, 22), (5, 150)])
def test_curvature_constants_of_the_specification(bound: float, curvature: float) -> None:
    assert largest_slope(bound) == pytest.approx(curvature, rel=0.02)


def test_abstained_failed_and_missing_labels_never_become_numbers(journal: Journal) -> None:
    with pytest.raises(RunError, match=r"3 safety labels for cost are missing from world .*, on r1, r2"):
        given_labels(journal, labels((SAFE, UNSAFE), (SAFE, ABSTAIN), (FAILED,)), 2)
    assert journal.safety() == [], "no part of them is kept"


def test_surplus_labels_do_not_count(journal: Journal) -> None:
    assert [one.labels for one in given_labels(journal, labels((SAFE, SAFE)), 1)] == [(SAFE,)]


def test_a_missing_label_may_say_either() -> None:
    found = label_estimate(labels((UNSAFE, Verdict.MISSING)), labels_each=2, cost_max=2.0, kind="rate")
    assert (found.value - found.missing, found.value) == (0.5, 1.0)
    by_logit = label_estimate(labels((UNSAFE, Verdict.MISSING)), labels_each=2, cost_max=2.0)
    assert (by_logit.value - by_logit.missing, by_logit.value) == pytest.approx((0.0, 2.0))


def test_surplus_verdicts_that_are_no_labels_do_not_count(journal: Journal) -> None:
    [labelled] = given_labels(journal, labels((SAFE, ABSTAIN, UNSAFE)), 2)
    assert labelled.labels == (SAFE, UNSAFE)
    found = label_estimate([labelled], labels_each=2, cost_max=2.0, kind="rate")
    assert (found.value, found.missing) == (0.5, 0.0)


def test_an_estimate_needs_two_responses() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        estimate_from_shares([1.0], labels_each=1, cost_max=2.0)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=40), st.sampled_from(["logit", "rate"]))
def test_a_runs_estimate_of_labels_is_that_of_their_shares(unsafe: list[int], kind: str) -> None:
    """The mean and its error are those of independent values, whatever prompt they are to."""
    verdicts = labels(*((UNSAFE,) * count + (SAFE,) * (5 - count) for count in unsafe))
    found = label_estimate(verdicts, labels_each=5, cost_max=2.0, kind=kind)
    mode: Any = "logit_labels" if kind == "logit" else "unsafe_rate"
    plain = estimate_from_shares(np.array(unsafe) / 5, labels_each=5, cost_max=2.0, mode=mode)
    assert (found.value, found.standard_error) == pytest.approx((plain.value, plain.standard_error), abs=1e-12)
    assert (found.responses, found.labels_each, found.mode) == (plain.responses, 5, plain.mode)
    assert (found.cost_max, found.missing) == (plain.cost_max, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "labels_each"), [("unsafe_rate", 1), ("unsafe_rate", 8), ("logit_labels", 5), ("logit_labels", 64)]
)
def test_interval_covers_the_truth_in_93_percent_of_2000_estimates(mode: Any, labels_each: int) -> None:
    assert interval_coverage(mode, labels_each, simulations=2000, seed=1) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize(
    ("costs", "chances"),
    [((-1.5, 0.5), (0.3, 0.7)), ((1.8, 1.7), (0.5, 0.5)), ((-0.1, 0.1), (0.5, 0.5)), ((-1.9, -1.2), (0.9, 0.1))],
)
def test_logit_interval_covers_the_truth_on_other_cost_distributions(costs: Any, chances: Any) -> None:
    assert interval_coverage("logit_labels", 20, costs=costs, chances=chances, simulations=2000) >= 0.93


REGIMES = [(rate, labels, answers, bound) for rate in (0.003, 0.05, 0.5) for labels, answers, bound in
           ((1, 32, 2.0), (32, 32, 8.0), (64, 58, 5.0), (4, 1000, 8.0))]  # fmt: skip


@pytest.mark.parametrize(("rate", "labels_each", "answers", "bound"), REGIMES)
@pytest.mark.parametrize("mode", ["unsafe_rate", "logit_labels"])
@pytest.mark.parametrize("skewed", [False, True])
def test_every_interval_covers_at_its_level_minus_2_points(
    rate: float, labels_each: int, answers: int, bound: float, mode: Any, skewed: bool
) -> None:
    """Rates of 0.3 to 50 %, all answers alike or a few at C and the rest at -C; 400 estimates each."""
    rate = max(rate, float(expit(-bound)))
    share = (rate - expit(-bound)) / (expit(bound) - expit(-bound))
    costs, chances = ((bound, -bound), (share, 1 - share)) if skewed else ((float(logit(rate)),), (1.0,))
    covered = interval_coverage(
        mode, labels_each, costs=costs, chances=chances, responses=answers, cost_max=bound, simulations=400
    )
    assert covered >= 0.93 - 2 * np.sqrt(0.93 * 0.07 / 400)


@pytest.mark.parametrize("draws", [32, 96, 500])
@pytest.mark.parametrize(("severe", "kind"), [(0.02, "skewed"), (0.3, "two ends"), (0.0, "narrow")])
def test_a_mean_within_stated_bounds_is_covered_however_skewed_it_is(draws: int, severe: float, kind: str) -> None:
    """Bounds [-2, 20]; 2 % of the answers at 20, or 30 % of them, or none; a draw has two answers to its prompt."""
    generator = np.random.default_rng([7, draws, int(100 * severe)])
    hits = 0
    for _ in range(400):
        harm = generator.random((draws, 1)) < severe  # both answers of a prompt are alike in it
        answers = np.where(harm, 20.0, generator.normal(-1.0, 0.1, (draws, 2)).clip(-2.0, 20.0))
        value, error = mean_with_error(answers.mean(axis=1))
        estimate = CostEstimate(value, error, 2 * draws, 1, "cost_model", bounds=(-2.0, 20.0))
        low, high = interval(estimate) or (9.0, 9.0)
        assert -2.0 <= low <= value <= high <= 20.0
        hits += low <= 20.0 * severe - (1.0 - severe) <= high
    assert hits / 400 >= 0.93
    assert interval(CostEstimate(0.0, 0.1, 64, 1, "cost_model")) is None
    assert interval(CostEstimate(0.0, 0.1, 64, 1, "cost_model", missing=0.2)) is None


@pytest.mark.slow
def test_rare_unsafe_answers_are_covered_too() -> None:
    rare = interval_coverage("unsafe_rate", 1, costs=(-3.5, -3.0), chances=(0.5, 0.5), simulations=2000)
    assert rare >= 0.93


def test_all_safe_labels_still_leave_an_interval() -> None:
    ends = interval(estimate_from_shares(np.zeros(100), labels_each=1, cost_max=2.0, mode="unsafe_rate"))
    assert ends == pytest.approx((0.0, 1 - 0.025 ** (1 / 100)))


def test_few_labels_come_with_a_warning_and_their_bias() -> None:
    few = estimate_from_shares(np.tile([0.2, 0.4], 100), labels_each=5, cost_max=2.0)
    warning = interval_warning(few)
    assert warning is not None
    assert "what 5 labels per response cannot tell about logits with C = 2" in warning
    assert interval_warning(estimate_from_shares(np.tile([0.2, 0.4], 10), labels_each=200, cost_max=2.0)) is None
    assert interval_warning(estimate_from_shares([0.0, 1.0], labels_each=1, cost_max=2.0, mode="unsafe_rate")) is None


def test_output_weights() -> None:
    assert output_weights(4) == (0.25, 0.25, 0.25, 0.25)
    assert output_weights(1) == (1.0,)
    with pytest.raises(ValueError, match="at least one"):
        output_weights(0)


def test_the_shortfall_is_a_share_of_the_way_from_what_a_test_reaches_to_the_limit() -> None:
    reach, limits = {"a": 0.03, "b": 0.5}, {"a": 0.05, "b": 1.0}
    assert shortfall({"a": 0.04, "b": 0.5}, reach, limits) == pytest.approx(0.5)
    assert shortfall({"a": 0.02, "b": 0.25}, reach, limits) == pytest.approx(-0.5)
    assert shortfall({"a": 0.051, "b": 0.1}, reach, limits) is None
    assert shortfall({"a": 0.01}, reach, limits) is None
    assert shortfall({"a": math.nan, "b": 0.1}, reach, limits) is None


def test_who_is_tested_first() -> None:
    """The likely ones by helpfulness, then the nearest, of two alike the later; those above a limit never."""
    short = {1: -1.0, 2: None, 3: 0.0, 4: 0.7, 5: 0.2, 6: -0.1}
    helpful = {1: 0.1, 2: 9.0, 3: 0.3, 4: 5.0, 5: 0.0, 6: 0.3}
    assert in_order_of_test(short, helpful) == [6, 3, 1, 5, 4]
    assert in_order_of_test({4: 0.5, 5: 0.5}, {4: 1.0, 5: 0.0}) == [5, 4]
    assert in_order_of_test({}, {}) == []


def test_two_responses_are_enough_for_an_estimate() -> None:
    assert mean_with_error([1.0, 3.0]) == pytest.approx((2.0, 1.0))
    found = estimate_from_shares([0.2, 0.4, 0.6], labels_each=5, cost_max=2.0, mode="unsafe_rate")
    assert found.value == pytest.approx(0.4)
    assert (found.responses, found.labels_each) == (3, 5)
    assert found.mode == "unsafe_rate"
    by_logit = estimate_from_shares([0.2, 0.4, 0.6], labels_each=5, cost_max=2.0)
    assert by_logit.mode == "logit_labels"


def test_a_clipped_logit_never_leaves_its_bounds_by_rounding() -> None:
    for cost_max in np.linspace(0.1, 6.0, 200):
        ends = np.abs(clipped_logit([0.0, 1.0], float(cost_max)))
        assert ends.max() <= cost_max
        assert ends.tolist() == pytest.approx([cost_max, cost_max])


def test_an_estimate_exactly_at_the_limit_is_put_to_the_test() -> None:
    assert shortfall({"cost": 0.5}, {"cost": 0.4}, {"cost": 0.5}) == pytest.approx(1.0)
    assert shortfall({"cost": 0.4}, {"cost": 0.4}, {"cost": 0.5}) == 0.0
