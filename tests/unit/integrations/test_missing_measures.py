"""An answer whose limit cannot be measured, inside each of the four trainers: the worst cost, no number, and counted.

The limit compares with the reference's answer, and some rows have none.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pddpo_ray.errors import RunError
from pddpo_ray.integrations import openrlhf, skyrl, verl
from pddpo_ray.integrations.answer_scores import AnswerScores, answers_file, asked_for

LIMITS: dict[str, Any] = {
    "longer": {"mean": {"rule": "words"}, "versus": "reference", "at_most": 1, "bounds": [0, 10]},
}
ROW = {"question": "How?", "index": 7, "split": "train"}
SHORT, LONG = "one two", "one two three four five six"
REFERENCE = {"reference": SHORT}
"""Against it SHORT measures 0 and LONG 4; an answer without it counts as 10."""
WHY = "has no reference answer to compare with"


def owner(folder: Path, answers_a_step: int = 2) -> AnswerScores:
    return AnswerScores(LIMITS, journal=folder / "limits.jsonl", answers_a_step=answers_a_step)


def by_verl(limits: AnswerScores) -> Callable[[str, dict[str, Any]], dict[str, float]]:
    compute_score = verl.limited(lambda solution_str: 1.0, limits)

    def score(answer: str, row: dict[str, Any]) -> dict[str, float]:
        found = compute_score("pans", answer, "", {**ROW, **row})
        return {**found, "reward": found["score"]}

    return score


def by_openrlhf(limits: AnswerScores) -> Callable[[str, dict[str, Any]], dict[str, float]]:
    reward_func = openrlhf.limited(lambda *told: [1.0], limits, row=lambda label: label)

    def score(answer: str, row: dict[str, Any]) -> dict[str, float]:
        found = reward_func([f"How?{answer}"], ["How?"], [row])
        return {**{name: one.item() for name, one in found["extra_logs"].items()}, "reward": found["rewards"].item()}

    return score


class Turns:
    """As skyrl_gym's BaseTextEnv."""

    def __init__(self, env_config: Any, extras: dict[str, Any]) -> None: ...

    def init(self, prompt: Any) -> Any:
        return prompt, {}

    def step(self, action: str) -> dict[str, Any]:
        return {"reward": 1.0, "done": True}

    def get_metrics(self) -> dict[str, Any]:
        return {}


def by_skyrl(limits: AnswerScores) -> Callable[[str, dict[str, Any]], dict[str, float]]:
    environment = skyrl.limited(Turns, limits)

    def score(answer: str, row: dict[str, Any]) -> dict[str, float]:
        env = environment(None, row)
        env.init([{"role": "user", "content": "How?"}])
        reward = env.step(answer)["reward"]
        return {"limit/longer": math.nan, **env.get_metrics(), "reward": reward}

    return score


@pytest.mark.parametrize("integration", [by_verl, by_openrlhf, by_skyrl])
def test_an_answer_without_a_number_is_the_worst_and_counted(
    integration: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A step of costs 4 and 10: mean 7 and spread 3; then a score is 1 less lambda (c - 7) / 3 less the reward's 1."""
    limits = owner(tmp_path)
    score = integration(limits)
    score(LONG, REFERENCE)
    missing = score(f"{LONG} seven", {})
    assert (missing["missing/longer"], math.isnan(missing["limit/longer"])) == (1.0, True)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"longer: no number for 1 of 2 answers (1 {WHY}), which count as the worst"
    ]
    step = json.loads((tmp_path / "limits.jsonl").read_text().splitlines()[1])["observed"]["longer"]
    assert (step["estimate"], step["n"], step["missing"]) == (7.0, 1, {WHY: 1})
    weight = limits.multipliers["longer"]
    assert weight > 0
    assert score(SHORT, {})["reward"] == pytest.approx(-weight * (10 - 7) / 3, rel=1e-5)
    again = score(SHORT, REFERENCE)
    assert again["reward"] == pytest.approx(-weight * (0 - 7) / 3, rel=1e-5)
    assert (again["missing/longer"], again["limit/longer"]) == (0.0, 0.0)


def test_what_is_missing_survives_a_kill_as_missing(tmp_path: Path) -> None:
    (tmp_path / "unbroken").mkdir()
    unbroken, broken = owner(tmp_path / "unbroken", 3), owner(tmp_path, 3)
    requests = [asked_for(["a"], [LONG], [1.0], [row]) for row in (REFERENCE, {}, REFERENCE, {})]
    expected = [unbroken.score(asked) for asked in requests]
    for asked in requests[:2]:
        broken.score(asked)
    again = owner(tmp_path, 3)
    assert [again.score(asked) for asked in requests] == expected
    assert again.multipliers == unbroken.multipliers
    assert LONG not in answers_file(tmp_path / "limits.jsonl").read_text()


def test_a_step_with_too_many_missing_ends_there_and_begins_again_once_the_source_works(tmp_path: Path) -> None:
    limits = {"longer": {**LIMITS["longer"], "failed": "25 %"}}
    journal = tmp_path / "limits.jsonl"
    begun = AnswerScores(limits, journal=journal, answers_a_step=2)
    begun.score(asked_for(["a"], [LONG], [1.0], [{}]))
    with pytest.raises(RunError, match=f"longer: no number for 1 of 2 answers of a step .1 {WHY}., more than the 25 %"):
        begun.score(asked_for(["a"], [SHORT], [1.0], [REFERENCE]))
    again = AnswerScores(limits, journal=journal, answers_a_step=2)
    for answer in (LONG, SHORT):
        again.score(asked_for(["a"], [answer], [1.0], [REFERENCE]))
    assert again.step == 1


def test_grpos_functions_cost_the_worst(tmp_path: Path) -> None:
    from pddpo_ray.integrations.trl import LimitedRewards

    (cost,) = LimitedRewards(LIMITS).reward_funcs
    columns = {"reference": [SHORT, None, SHORT], "log_metric": lambda name, value: None}
    assert cost(["How?"] * 3, [LONG, LONG, SHORT], **columns) == [-4.0, -10.0, 0.0]


def test_a_whole_score_of_trl_costs_the_worst_and_its_log_says_how_many(tmp_path: Path) -> None:
    """Costs 4 and 10 are -3 and 3 from their mean, which is one spread."""
    from pddpo_ray.integrations.trl import LimitedScore

    def helpful(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        return [1.0] * len(prompts)

    limits = LimitedScore(helpful, LIMITS, journal=tmp_path / "limits.jsonl")
    accelerator = SimpleNamespace(num_processes=1, process_index=0, is_main_process=True)
    trainer: Any = SimpleNamespace(
        reward_funcs=[limits.reward_func], train_dataset=[{"prompt": "How?"}], accelerator=accelerator, stats={},
        num_generations=2, model=SimpleNamespace(training=True), state=SimpleNamespace(global_step=0),
        add_callback=lambda callback: None,
    )  # fmt: skip
    limits.attach(trainer)
    logged: dict[str, float] = {}
    columns = {"reference": [SHORT, None], "log_metric": logged.__setitem__}
    scores = limits.reward_func(["How?"] * 2, [LONG, LONG], **columns)
    weight = limits.controller.multipliers["longer"]
    assert scores == pytest.approx([weight, -weight])
    assert logged == {
        "limits/longer/estimate": 7.0, "limits/longer/multiplier": weight,
        "limits/longer/missing": 0.5, f"limits/longer/missing/{WHY}": 0.5,
    }  # fmt: skip
    limits.reward_func(["How?"] * 2, [LONG, SHORT], **{**columns, "reference": [SHORT, SHORT]})
    assert logged[f"limits/longer/missing/{WHY}"] == 0.0
