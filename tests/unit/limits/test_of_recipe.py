"""Limits of a recipe with their quantities, what is said about estimates, and keys of earlier versions refused."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from scipy.optimize import brentq

from pddpo_ray.config import Config, load
from pddpo_ray.errors import UserError
from pddpo_ray.limits.estimate import LimitEstimate
from pddpo_ray.limits.of_recipe import typed_limits
from pddpo_ray.limits.quantities import Amount, Limit, Quantity
from pddpo_ray.records import CostEstimate


def dumped(recipe: str, *overrides: str) -> dict[str, object]:
    return load(recipe, list(overrides)).model_dump(mode="json")


RATE = "limits.cost={rate: {world: cost}, at_most: 30 %, learned_from: comparisons}"


def test_limits_are_typed_and_a_logit_lies_in_its_box() -> None:
    (rate,) = typed_limits(dumped("tabular", RATE))
    assert (str(rate), rate.quantity.kind) == ("at most 30 %", "rate")
    first, second = typed_limits(dumped("tabular-two-limits", "dual.cost_max=3.0"))
    assert (first.quantity.kind, first.quantity.low, first.quantity.high) == ("logit", -3.0, 3.0)
    assert [first.name, second.name] == ["cost", "privacy"]
    assert [one.name for one in typed_limits(dumped("tabular-limits"))] == ["harm", "leaks"]


def test_limits_of_an_older_runs_recipe_are_read() -> None:
    assert str(typed_limits({"dual": {"threshold": 0.5}})[0]) == "at most 0.5 logit"
    older: dict[str, Any] = {"dual": {"threshold": 0.3}, "feedback": {"signal": "unsafe_rate"}}
    assert str(typed_limits(older)[0]) == "at most 30 %"
    older = {"constraints": [{"name": "cost"}, {"name": "privacy", "threshold": 0.1}]}
    assert [str(one) for one in typed_limits(older)] == ["at most 0 logit", "at most 0.1 logit"]
    older = {"dual": {"threshold": 0.2}, "constraints": [{"name": "cost", "threshold": None}]}
    assert [str(one) for one in typed_limits(older)] == ["at most 0.2 logit"]


@pytest.mark.parametrize(
    ("recipe", "overrides", "line"),
    [
        ("tabular", ["dual.threshold=-0.2"], "limits.cost.at_most=-0.2"),
        (
            "tabular",
            ["dual.threshold=-0.2", "feedback.labels_each=7"],
            "limits.cost.at_most=-0.2 limits.cost.labels_each=7",
        ),
        (
            "tabular",
            ["feedback.signal=unsafe_rate", "dual.threshold=0.3"],
            "'limits.cost={rate: {world: cost}, at_most: 30 %, labels_each: 64, learned_from: comparisons}'",
        ),
        (
            "tabular",
            ["feedback={kind: people, signal: unsafe_rate}", "dual.threshold=0.5", "feedback.labels_each=3"],
            "'limits.cost={rate: {people: {}}, at_most: 50 %, labels_each: 3, learned_from: comparisons}'",
        ),
        (
            "text-world-scorers",
            ["feedback.signal=cost_model", "dual.threshold=1.5"],
            "'limits.cost={mean: {model: cost}, at_most: 1.5, learned_from: comparisons}'",
        ),
        (
            "tabular-two-limits",
            ["constraints=[{name: cost}, {name: privacy, threshold: 0.1, rho: 2.0}]", "feedback.labels_each=64"],
            "'limits.cost={logit: {world: cost}, at_most: 0, labels_each: 64}'"
            " 'limits.privacy={logit: {world: privacy}, at_most: 0.1, labels_each: 64, dual: {rho: 2.0}}'",
        ),
        ("tabular", ["certificate.confidence=0.9"], "'limits.cost.confidence=90 %'"),
        (
            "tabular",
            ["constraints=[{name: cost}]"],
            "'limits.cost={logit: {world: cost}, at_most: 0, labels_each: 64}'",
        ),
        ("tabular-two-limits", ["feedback.labels_each=8"], "limits.cost.labels_each=8 limits.privacy.labels_each=8"),
        (
            "tabular-two-limits",
            ["dual.threshold=0.3", "certificate.confidence=0.9"],
            "'limits.cost.confidence=90 %' 'limits.privacy.confidence=90 %'",
        ),
    ],
)
def test_an_override_of_an_earlier_version_is_refused_with_one_that_loads(
    recipe: str, overrides: list[str], line: str
) -> None:
    with pytest.raises(UserError, match="is no setting: limits say what must hold; write ") as refused:
        load(recipe, overrides)
    said = str(refused.value).partition("; write ")[2]
    assert said == line
    kept = [one for one in overrides if "people" in one]
    loaded = load(recipe, [*(["feedback.kind=people"] if kept else []), *shlex.split(said)])
    assert all(one.labelled for one in loaded.stated)


@pytest.mark.parametrize(
    ("recipe", "override", "said"),
    [
        ("tabular", "constraints=[]", "must hold; leave it out"),
        ("tabular", "constraints=3", "must hold; leave it out"),
        ("tabular", "dual.threshold=null", "must hold; leave it out"),
        ("tabular", "certificate.confidence=0.95", "must hold; leave it out"),
        ("tabular-two-limits", "dual.threshold=0.1", "states its own (limits.cost, limits.privacy); leave it out"),
        ("text-world-limits", "feedback.labels_each=8", "limits.length, limits.rude); leave it out"),
        (
            "text-world-people",
            "feedback.signal=unsafe_rate",
            "write 'limits.cost={rate: {people: {}}, at_most: D, labels_each: 8, learned_from: comparisons}',"
            " D being your limit on that scale",
        ),
        (
            "text-world-certified",
            "feedback.signal=logit_labels",
            "write 'limits.unsafe={logit: {world: cost}, at_most: D, labels_each: 1}', D being your limit on that"
            " scale",
        ),
    ],
)
def test_a_key_of_an_earlier_version_that_says_nothing_or_no_bound_is_refused(
    recipe: str, override: str, said: str
) -> None:
    with pytest.raises(UserError, match=rf"^override `.*{re.escape(said)}$"):
        load(recipe, [override])


def test_old_keys_beside_broken_limits_are_refused_in_one_line() -> None:
    for limits in ("limits=3", "limits.cost=3"):
        with pytest.raises(UserError, match=r"`dual\.threshold` is no setting"):
            load("tabular", [limits, "dual.threshold=0.1"])


def test_a_recipe_file_of_an_earlier_version_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("extends: text-world\ndual: {threshold: -2.5, rho: 0.7}\n")
    line = "limits: {cost: {at_most: -2.5}}"
    with pytest.raises(UserError, match=rf"own.yaml line 2: `dual.threshold` .*write {re.escape(line)}$"):
        load(str(path))
    path.write_text(f"extends: text-world\n{line}\ndual: {{rho: 0.7}}\n")
    assert load(str(path)).thresholds == {"cost": -2.5}
    path.write_text("extends: text-world-limits\ndual: {threshold: -2.5}\n")
    with pytest.raises(UserError, match=r"each limit states its own \(limits.harmful, .*leave it out"):
        load(str(path))
    with pytest.raises(ValueError, match=re.escape("write limits: {cost: {rate: {world: cost}, at_most: 20 %,")):
        Config.model_validate(
            {
                "world": {"kind": "tabular"},
                "dual": {"threshold": 0.2},
                "feedback": {"kind": "world", "signal": "unsafe_rate"},
            }
        )


def test_who_labels_follows_feedback_unless_the_limit_says() -> None:
    assert load("tabular", ["feedback.kind=people"]).limits["cost"]["logit"] == {"people": {}}
    rate = load("tabular", [RATE, "feedback.kind=people", "limits.cost.rate={people: {}}"])
    assert rate.limits["cost"]["rate"] == {"people": {}}
    with pytest.raises(UserError, match=re.escape("limits: {cost: {logit: {people: {}}, at_most: 0")):
        load("tabular", ["feedback.kind=people", "limits.cost.logit={world: cost}"])
    with pytest.raises(UserError, match="holds one limit, named cost"):
        load("sacpo", ["limits.length={mean: {rule: words}, at_most: 9}"])
    with pytest.raises(UserError, match="say how many labels"):
        load("tabular", ["limits.cost.labels_each=null"])


def test_one_limit_is_laid_on_another_by_what_it_says() -> None:
    config = load(
        "tabular",
        ["limits.cost={rate: {world: cost}, at_least: 5 %}", "limits.cost.dual.rho=2.0", "limits.cost.dual.first=1.0"],
    )
    assert config.limits["cost"] == {
        "rate": {"world": "cost"}, "at_least": "5 %", "labels_each": 64,
        "dual": {"rho": 2.0, "first": 1.0},
    }  # fmt: skip


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


def test_answers_outside_the_stated_bounds_are_counted_and_leave_no_interval() -> None:
    words = Limit("short", Amount(Quantity("mean", "words", low=0.0, high=40.0), 20.0))
    said = LimitEstimate.of(words, CostEstimate(12.0, 0.5, 96, 1, "cost_model", "short"), outside=2)
    assert (said.outside, said.low, said.high, said.kept) == (2, None, None, None)
    assert said.measured == "12 words (no interval: 2 answers outside the stated bounds)"


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


@pytest.mark.parametrize("recipe", ["text-world-limits", "tabular-limits"])
def test_a_mean_without_bounds_is_refused_when_the_recipe_is_read(recipe: str) -> None:
    """Before a dry run plans with it and before a model is loaded for it."""
    source = {"text-world-limits": "rule: words", "tabular-limits": "world: length"}[recipe]
    with pytest.raises(UserError, match=r"limits\.brief: a mean needs `bounds: \[low, high\]` in a run"):
        load(recipe, [f"limits.brief={{mean: {{{source}}}, at_most: 12}}"])
