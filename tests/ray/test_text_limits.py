"""People measure one of three limits of a run on Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors import launch
from pddpo_ray.config import load
from pddpo_ray.errors import ParkedError
from pddpo_ray.journal.identity import open_folder
from tests.runs.test_people_limits import AT_ONCE, PARKED, QUESTION, long, nobody_twice
from tests.support.answering_people import answering
from tests.support.measured import measured_in

pytestmark = [pytest.mark.ray, pytest.mark.full]

SMALL = (
    "rounds=2", "rollout={engine: transformers, max_tokens: 40, candidates: 4}", "feedback.responses=16",
    "offline.pairs=48", "offline.compare_rounds=0", "explore={calibration: 48, rank: 8, prompts: 4, picks: 2}",
    "trainer.threads=1", "trainer.fit.steps=3",
    "report={html: false, tensorboard: false}",
)  # fmt: skip


def test_people_measure_a_limit_of_a_run_on_ray(ray_running: None, tmp_path: Path) -> None:
    """The run parks until people are there; then their labels are the limit's numbers, answer by answer."""
    folder, question = tmp_path / "run", tmp_path / "long.md"
    question.write_text(QUESTION)
    rude = f"limits.rude={{rate: {{people: {{question: {question}, labels_each: 2}}}}, over: outside, at_most: 60 %}}"
    ray = ("cluster.mode=ray", "cluster.cpus=4", "dual.rho=4")
    with pytest.raises(ParkedError, match="measure-answers-rude: waiting for people"):
        launch.run_recipe(load("text-world-limits", [*SMALL, *ray, rude, PARKED]), folder)
    with answering(folder, 2, lambda asked, _person: long(asked.left)) as crowd:
        launch.run_recipe(load("text-world-limits", [*SMALL, *ray, rude, AT_ONCE]), folder, resume=True)
    assert nobody_twice(crowd)
    with open_folder(folder) as journal:
        payloads = [measured_in(journal, number) for number in (1, 2)]
        texts = {one.id: one.text for number in (1, 2) for one in journal.samples(number, "cost")}
    measured = [
        (texts[answer], costs[2])
        for payload in payloads
        for answer, costs in zip(payload["ids"], payload["costs"], strict=True)
        if costs[2] is not None
    ]
    assert 2 * len(measured) == len(crowd.said) > 0
    assert all(cost == float(long(text)) for text, cost in measured)
