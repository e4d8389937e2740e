"""Weights of prompt sets, held against the lists themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddpo_ray.theory.estimates.prompt_sets import PromptSets, prompt_sets, split_by_share

ORACLE = json.loads((Path(__file__).parents[2] / "data" / "limits.json").read_text())


def of_world(world: dict) -> PromptSets:
    sets = world["prompt_sets"]
    return prompt_sets({n: s["prompts"] for n, s in sets.items()}, {n: s["share"] for n, s in sets.items()})


def test_two_sets_by_hand() -> None:
    """a = {p, q} at 60 %, b = {q, r} at 40 %: P_0 = .3, .5, .2; the factors are P_s / P_0."""
    sets = prompt_sets({"a": ["p", "q"], "b": ["q", "r"]}, {"a": 0.6, "b": 0.4})
    np.testing.assert_allclose(sets.weights, [0.3, 0.5, 0.2])
    np.testing.assert_allclose(sets.factor("a"), [0.5 / 0.3, 0.5 / 0.5, 0.0])
    np.testing.assert_allclose(sets.factor("b"), [0.0, 0.5 / 0.5, 0.5 / 0.2])
    np.testing.assert_allclose(sets.factor(None), 1.0)


def test_sets_without_common_prompts_weigh_one_over_their_share() -> None:
    sets = prompt_sets({"a": [1, 2, 3], "b": [4]}, {"a": 0.8, "b": 0.2})
    np.testing.assert_allclose(sets.factor("a"), [1.25, 1.25, 1.25, 0.0])
    np.testing.assert_allclose(sets.factor("b"), [0.0, 0.0, 0.0, 5.0])


@pytest.mark.parametrize("world", ORACLE, ids=lambda world: world["kind"])
def test_expectations_over_all_prompts_are_those_over_the_set(world: dict) -> None:
    sets = of_world(world)
    order = [sets.prompts.index(x) for x in range(len(world["reward"]))]
    np.testing.assert_allclose(sets.weights[order], world["optimum"]["prompt_weights"], atol=1e-12)
    policy = np.array(world["optimum"]["policy"])
    for limit, value in zip(world["limits"], world["optimum"]["values"], strict=True):
        cost = np.array(limit["measure"]) * sets.factor(limit["over"])[order, None]
        assert sets.weights[order] @ np.sum(policy * cost, axis=1) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(
    ("lists", "shares", "message"),
    [
        ({"a": [1]}, {"a": 0.9}, "sum to 90 %"),
        ({"a": []}, {"a": 1.0}, "a has no prompts"),
        ({"a": [1], "b": [2]}, {"a": 1.0}, "b"),
        ({"a": [1], "b": [2]}, {"a": 1.0, "b": 0.0}, "not above 0"),
    ],
)
def test_sets_that_say_nothing_are_refused(lists: dict, shares: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prompt_sets(lists, shares)


@pytest.mark.slow
@given(st.integers(0, 500), st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6))
def test_draws_are_split_by_share_to_the_last_one(total: int, raw: list[float]) -> None:
    shares = np.array(raw) / np.sum(raw)
    counts = split_by_share(total, shares)
    assert counts.sum() == total
    assert np.abs(counts - total * shares).max() < 1.0 + 1e-6
