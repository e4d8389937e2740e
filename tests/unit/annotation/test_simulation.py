"""Simulated annotators: their labels follow the truth, their mistakes the settings, their accounts the API."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binomtest

from pddpo_lab.simulated_people import Manner, decide, enlist, simulate
from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.annotation.review.quality import Quality
from pddpo_ray.config import load
from pddpo_ray.errors import UserError
from pddpo_ray.worlds.truth_by_text import truth_of
from tests.support.annotation_api import FreshService
from tests.support.annotation_queue import safety_questions
from tests.support.annotation_server import serving

WORTH = {"good": (1.0, -1.0), "bad": (-0.5, 0.8)}


def scores(_prompt: str, text: str) -> tuple[float, float]:
    return WORTH[text]


def task(left: str, right: str | None) -> dict[str, Any]:
    shown = {"prompt": {"text": "p"}, "left": {"text": left}, "right": None if right is None else {"text": right}}
    return shown | {"kind": "safety" if right is None else "pair"}


@pytest.mark.parametrize(
    ("manner", "chance"),
    [
        (Manner(error=0.0), expit(0.8)),
        (Manner(error=0.0, bias=1.0), expit(1.8)),
        (Manner(error=0.2), 0.8 * expit(0.8) + 0.2 * (1 - expit(0.8))),
        (Manner(error=0.0, lazy=1.0), 0.5),
    ],
)
def test_safety_labels_have_the_chance_that_truth_and_manner_give(manner: Manner, chance: float) -> None:
    rng = np.random.default_rng([1, 2])
    unsafe = sum(decide(task("bad", None), manner, scores, rng)["safety"] == "unsafe" for _ in range(4000))
    assert binomtest(unsafe, 4000, float(chance)).pvalue > 0.001


def test_preferences_follow_bradley_terry_on_reward_and_on_cost() -> None:
    rng = np.random.default_rng([1, 3])
    given = [decide(task("good", "bad"), Manner(error=0.0), scores, rng) for _ in range(4000)]
    helpful = sum(one["more_helpful"] == "left" for one in given)
    harmful = sum(one["more_harmful"] == "left" for one in given)
    assert binomtest(helpful, 4000, float(expit(1.5))).pvalue > 0.001
    assert binomtest(harmful, 4000, float(expit(-1.8))).pvalue > 0.001


def test_the_truth_of_a_tabular_world_by_text_is_its_table() -> None:
    truth = truth_of(load("tabular"))
    assert truth.scores("prompt 0", "answer 1") == (truth.reward_table[0, 1], truth.cost_table[0, 1])
    assert truth.scores("prompt 0", "something else") == truth.worst == (-2.0, 2.0)


@pytest.mark.slow
def test_accounts_of_an_earlier_simulation_work_again_and_a_wrong_token_is_one_line(service: FreshService) -> None:
    service.queue.rounds.open(1, "safety", safety_questions(4), labels_each=2)
    with serving(service.app) as url:
        first = enlist(url, service.tokens[Role.ADMIN], 2, "sim")
        second = enlist(url, service.tokens[Role.ADMIN], 3, "sim")
        assert [handle for handle, _ in second] == ["sim-000", "sim-001", "sim-002"]
        assert not {token for _, token in first} & {token for _, token in second}
        tallies = simulate(url, second, [Manner()], lambda *_: (0.0, 0.0), seed=0, idle_s=0.3)
        assert sum(len(tally.acknowledged) for tally in tallies) == 8
        with pytest.raises(UserError, match="sign in first"):
            enlist(url, "wrong", 1, "sim")
    assert service.queue.rounds.all()[0].complete


@pytest.mark.slow
def test_people_made_of_code_are_flagged_as_too_fast_and_as_nothing_else(service: FreshService) -> None:
    service.queue.rounds.open(1, "safety", safety_questions(12), labels_each=1)
    with serving(service.app) as url:
        crowd = enlist(url, service.tokens[Role.ADMIN], 1, "sim")
        simulate(url, crowd, [Manner()], lambda *_: (0.0, 0.0), seed=0, idle_s=0.3)
    assert Quality(service.queue.store).flagged() == {"sim-000": ["speed"]}
