"""Limits of a recipe with their quantities, in today's form and in version 0.1's, and what is said about estimates."""

from __future__ import annotations

import math

import pytest
import yaml
from scipy.optimize import brentq

from pddpo_ray.config import load
from pddpo_ray.limits.estimate import LimitEstimate
from pddpo_ray.limits.quantities import Amount, Limit, Quantity
from pddpo_ray.limits.recipe_form import limits_lines, typed_limits
from pddpo_ray.records import CostEstimate


def dumped(recipe: str, *overrides: str) -> dict[str, object]:
    return load(recipe, list(overrides)).model_dump(mode="json")


def test_limits_of_version_0_1_are_typed_by_their_signal() -> None:
    (rate,) = typed_limits(dumped("tabular", "feedback.signal=unsafe_rate", "dual.threshold=0.3"))
    assert (str(rate), rate.quantity.kind) == ("at most 30 %", "rate")
    first, second = typed_limits(dumped("tabular-two-limits", "dual.cost_max=3.0"))
    assert (first.quantity.kind, first.quantity.low, first.quantity.high) == ("logit", -3.0, 3.0)
    assert [first.name, second.name] == ["cost", "privacy"]
    assert [one.name for one in typed_limits(dumped("tabular-limits"))] == ["harm", "leaks"]
    assert str(typed_limits({"dual": {"threshold": 0.5}})[0]) == "at most 0.5 logit"


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        ("tabular", ["dual.threshold=-0.2", "feedback.labels_each=7"]),
        ("tabular", ["feedback.signal=unsafe_rate", "dual.threshold=0.3"]),
        ("tabular-two-limits", ["constraints=[{name: cost}, {name: privacy, threshold: 0.1}]"]),
    ],
)
def test_the_lines_of_today_state_the_limits_that_version_0_1_states(recipe: str, overrides: list[str]) -> None:
    """The lines, laid on the recipe, load and name the same quantities and bounds."""
    old = load(recipe, overrides)
    lines = limits_lines(old.model_dump(mode="json"))
    assert lines is not None
    said = [f"{key}={yaml.safe_dump(value, default_flow_style=True, width=1000).strip()}"
            for key, value in yaml.safe_load(lines).items()]  # fmt: skip
    kept = [one for one in overrides if not one.startswith(("constraints", "dual.threshold"))]
    today = load(recipe, [*kept, "constraints=[{name: cost}]", *said])
    for before, after in zip(old.typed_limits, today.typed_limits, strict=True):
        assert (before.name, before.bound.number) == (after.name, after.bound.number)
        assert before.quantity.kind == after.quantity.kind
        assert str(before) == str(after)
    assert [one.asking.labels_each for one in today.stated] == [old.feedback.labels_each] * len(today.stated)
    assert limits_lines(today.model_dump(mode="json")) is None


def test_what_no_line_says_names_the_reason() -> None:
    with pytest.raises(ValueError, match="write that question"):
        limits_lines({"feedback": {"kind": "judge", "signal": "unsafe_rate"}})
    with pytest.raises(ValueError, match=r"feedback.kind=model with feedback.signal=logit_labels"):
        limits_lines({"feedback": {"kind": "model", "signal": "logit_labels"}})
    model = {"feedback": {"kind": "model", "signal": "cost_model", "cost": {"path": "m", "scale": 2.0}}}
    assert "score_model: m, scale: 2.0" in (limits_lines(model) or "")


def test_an_estimate_is_said_in_the_limits_own_unit() -> None:
    """43 of 100 labels; at least 60 % of the complement is the cost 1 - 0.57."""
    share = Quantity("rate", "share", "private", 0.0, 1.0)
    estimate = CostEstimate(0.43, 0.05, 100, 1, "unsafe_rate", "leaks")
    said = LimitEstimate.of(Limit("leaks", Amount(share, 0.3)), estimate)
    assert said.brief.startswith("leaks 43 ± ")
    assert said.brief.endswith("(at most 30 % over private)")
    assert said.kept is False
    kept = LimitEstimate.of(Limit("clean", Amount(share, 0.6), at_least=True), estimate)
    assert kept.estimate == pytest.approx(0.57)
    assert kept.low is not None
    assert kept.high is not None
    assert (kept.low, kept.high) == pytest.approx((1 - said.high, 1 - said.low))  # type: ignore[operator]
    assert kept.kept is None
    assert "57 % (" in str(kept)
    assert "at least 60 % over private" in str(kept)


def test_beside_a_logit_stands_the_unsafe_rate_and_a_score_without_bounds_has_no_interval() -> None:
    logit = Quantity("logit", "logit", None, -2.0, 2.0)
    said = LimitEstimate.of(
        Limit("harm", Amount(logit, 0.0)), CostEstimate(0.427, 0.1, 64, 20, constraint="harm", cost_max=2.0), 0.6
    )
    assert "0.427 logit" in said.measured
    assert said.measured.endswith("unsafe rate 60 %)")
    score = Limit("cost", Amount(Quantity("mean", "score"), 1.495))
    assert LimitEstimate.of(score, CostEstimate(1.2, 0.1, 64, 1, "cost_model")).measured == (
        "1.2 score (no interval: bounds unknown)"
    )


def test_a_mean_has_an_interval_within_stated_bounds_alone() -> None:
    """48 draws of two answers each, values in [0, 40]: at either end one of the stakes has won log(J / .025)."""
    quantity = Quantity("mean", "words", low=0.0, high=40.0)
    estimate = CostEstimate(12.0, 0.5, 96, 1, "cost_model", "short")
    said = LimitEstimate.of(Limit("short", Amount(quantity, 20.0)), estimate)
    count, squares = 48, (0.5 / 40.0) ** 2 * 48 * 47
    stakes = (0.9, math.sqrt(8.0 * math.log(40.0) / count))

    def wealth(distance: float) -> float:
        """Of the best stake against a mean that lies so far off, above what refutes it."""
        lost = squares + count * distance**2
        won = (count * b * distance + (math.log(1.0 - b) + b) * lost for b in stakes)
        return max(won) - math.log(len(stakes) / 0.025)

    half = 40.0 * brentq(wealth, 0.0, 0.3)
    assert (said.low, said.high) == pytest.approx((12.0 - half, 12.0 + half))
    unbounded = LimitEstimate.of(Limit("short", Amount(Quantity("mean", "words"), 20.0)), estimate)
    assert (unbounded.low, unbounded.high) == (None, None)
    assert "no interval: bounds unknown" in unbounded.measured
