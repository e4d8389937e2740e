"""Causes of a scorer-labelled run's gap: the truth is where an arm says so and nowhere else; the table by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from lab.studies.scorers.run import ARMS, TrueScorer, config_of, drawn_answers, opener, table
from pddpo_ray.records import Array, Response
from pddpo_ray.worlds.text.prepared_world import prepare_text_world


@dataclass(eq=False)
class Distorted(TrueScorer):
    """Half of the truth and 3, which a line puts right."""

    def score(self, responses: Sequence[Response]) -> Array:
        return 0.5 * super().score(responses) + 3.0


@pytest.mark.parametrize("kind", ["reward", "cost"])
@pytest.mark.parametrize("name", list(ARMS))
def test_the_truth_is_where_an_arm_says_so(name: str, kind: str) -> None:
    arm = ARMS[name]
    world = prepare_text_world(config_of(0, arm)).world
    truth = world.reward if kind == "reward" else world.cost
    answers = drawn_answers(world, 1)[:50]
    true = np.array([truth(one) for one in answers])
    found = opener(arm, world, 0)(f"{kind}-model", lambda: Distorted(kind, truth)).score(answers)
    put_right = kind in arm.true or (arm.calibrated and kind == "cost")
    np.testing.assert_allclose(found, true if put_right else 0.5 * true + 3.0, atol=1e-9)


def test_answers_are_drawn_as_the_reference_draws_them() -> None:
    world = prepare_text_world(config_of(0, ARMS["truth"])).world
    costs = np.array([world.cost(one) for one in drawn_answers(world, 3)])
    inside = world.oracle.reference[:, : len(world.grammar.answer_ids)]
    expected = (inside * world.logits[:, : inside.shape[1]]).sum() / inside.sum()
    assert abs(costs.mean() - expected) < 4.0 * costs.std() / np.sqrt(len(costs))


def test_the_table_by_hand() -> None:
    def row(gaps: dict[str, float]) -> dict[str, Any]:
        return {
            name: {"gap_last": gaps.get(name, 0.5), "multiplier": 0.3, "multiplier_optimum": 0.6, "labels_used": 1_000}
            for name in ARMS
        }

    half_done = {"learned": row({})["learned"]}
    shown = table({"1": row({"cost": 0.4}), "2": row({"cost": 0.3}), "3": row({"cost": 0.2}), "4": half_done})
    assert "| reward trained, the truth for cost | 0.40, 0.30, 0.20 | 0.300 | +0.200 (-0.048 to +0.448) |" in shown
    assert "| 0.50, 0.50, 0.50 | 0.500 |  | 0.50, 0.50, 0.50 | 1,000 |" in shown
