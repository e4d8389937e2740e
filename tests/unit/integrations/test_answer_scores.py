"""The owner of limits that is asked answer by answer: scores by hand, one move a step, repeats, and a new begin."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.errors import UserError
from pddpo_ray.integrations.answer_scores import AnswerScores, Asked, answers_file, asked_for
from pddpo_ray.integrations.controller import LimitController

LIMITS: dict[str, Any] = {"length": {"mean": {"rule": "words"}, "at_most": 3, "bounds": [0, 10]}}
STEP = [("a", "one two three four five six seven eight", 3.0), ("a", "one two", 1.0)]
STEP += [("b", "one two three four five six", 7.0), ("b", "one two three four", 1.0)]
"""Words 8, 2, 6, 4: 3, -3, 1, -1 from the prompts' means, of mean square 5; rewards 1, -1, 3, -3, of mean square 5."""


def owner(folder: Path, answers_a_step: int = 4, limits: dict[str, Any] = LIMITS) -> AnswerScores:
    return AnswerScores(limits, journal=folder / "limits.jsonl", answers_a_step=answers_a_step)


def one(prompt: str, answer: str, reward: float | None, **row: Any) -> Asked:
    return asked_for([prompt], [answer], [reward], [row])


def step(scores: AnswerScores) -> list[float]:
    return [scores.score(one(*answer)).scores[0] for answer in STEP]


def moves(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "limits.jsonl").read_text().splitlines()]
    return [line for line in lines if "observed" in line]


def test_a_first_step_is_scored_by_reward_and_the_second_one_by_hand(tmp_path: Path) -> None:
    """After the first step rewards have mean 3 and spread sqrt 5, words mean 5 and spread sqrt 5."""
    scores = owner(tmp_path)
    assert step(scores) == [3.0, 1.0, 7.0, 1.0]
    told = LimitController(LIMITS)
    told.observe({"length": [8.0, 2.0, 6.0, 4.0]}, ["a", "a", "b", "b"], step=0)
    weight = scores.multipliers["length"]
    assert weight == told.multipliers["length"] > 0
    scored = scores.score(one("a", "one two three", 5.0))
    assert scored.scores == pytest.approx([((5 - 3) - weight * (3 - 5)) / math.sqrt(5)])
    assert (scored.values, scored.multipliers) == ({"length": [3.0]}, {"length": weight})


def test_multipliers_move_once_a_step_and_stand_still_within_it(tmp_path: Path) -> None:
    scores = owner(tmp_path)
    seen = [scores.score(one(*STEP[index % 4])).multipliers["length"] for index in range(12)]
    assert seen[:4] == [0.0] * 4
    assert len(set(seen[4:8])) == len(set(seen[8:])) == 1
    assert seen[0] < seen[4] < seen[8]
    assert [line["step"] for line in moves(tmp_path)] == [0, 1, 2]
    assert moves(tmp_path)[0]["observed"]["length"]["n"] == 4


def test_many_answers_of_one_request_are_scored_alike(tmp_path: Path) -> None:
    (tmp_path / "single").mkdir()
    prompts, answers, rewards = (list(column) for column in zip(*STEP, strict=True))
    whole, single = owner(tmp_path), owner(tmp_path / "single")
    for _ in range(2):
        assert whole.score(asked_for(prompts, answers, rewards)).scores == step(single)
    assert whole.multipliers == single.multipliers


def test_a_repeated_request_gets_its_answer_again_and_counts_once(tmp_path: Path) -> None:
    scores = owner(tmp_path)
    last = one(*STEP[3])
    for answer in STEP[:3]:
        scores.score(one(*answer))
    first = scores.score(last)
    assert scores.step == 1
    assert scores.score_all([last, last]) == [first, first]
    assert len(answers_file(tmp_path / "limits.jsonl").read_text().splitlines()) == 5
    twice = one(*STEP[0])
    scores.score_all([twice, twice])
    assert [scores.score(one(*answer)).multipliers for answer in STEP[:2]] == [scores.multipliers] * 2
    assert scores.step == 1


def test_answers_of_an_evaluation_move_nothing(tmp_path: Path) -> None:
    scores = owner(tmp_path)
    for answer in STEP:
        scores.score(one(*answer, split="test"))
    assert (scores.step, scores.multipliers) == (0, {"length": 0.0})


@pytest.mark.parametrize("killed_after", [0, 1, 3, 4, 6, 8])
def test_whoever_begins_anew_goes_on_in_the_middle_of_a_step(killed_after: int, tmp_path: Path) -> None:
    (tmp_path / "unbroken").mkdir()
    (tmp_path / "broken").mkdir()
    requests = [one(*STEP[index % 4]) for index in range(10)]
    unbroken, broken = owner(tmp_path / "unbroken"), owner(tmp_path / "broken")
    expected = [unbroken.score(asked) for asked in requests]
    found = [broken.score(asked) for asked in requests[:killed_after]]
    with answers_file(tmp_path / "broken" / "limits.jsonl").open("a") as file:
        file.write('{"id": "torn')
    again = owner(tmp_path / "broken")
    repeated = requests[killed_after - 1 : killed_after]  # its reply was lost with the process
    assert [again.score(asked) for asked in repeated] == found[-1:]
    assert found + [again.score(asked) for asked in requests[killed_after:]] == expected
    assert again.multipliers == unbroken.multipliers


def test_a_kill_between_the_two_files_repeats_the_step_to_the_same_end(tmp_path: Path) -> None:
    scores, answers = owner(tmp_path), answers_file(tmp_path / "limits.jsonl")
    for answer in STEP[:3]:
        scores.score(one(*answer))
    before = answers.read_text()
    last = one(*STEP[3])
    first = scores.score(last)
    counted = [line for line in answers.read_text().splitlines() if last.id in line]
    answers.write_text(before + counted[0] + "\n")  # as if the step's end had reached the journal alone
    again = owner(tmp_path)
    assert (again.step, again.multipliers, again.score(last)) == (1, scores.multipliers, first)


def test_a_trainer_that_is_started_again_begins_its_step_again(tmp_path: Path) -> None:
    (tmp_path / "unbroken").mkdir()
    unbroken, broken = owner(tmp_path / "unbroken"), owner(tmp_path)
    for scores in (unbroken, broken):
        step(scores)
    broken.score(one("c", "one", 9.0))
    again = owner(tmp_path)
    again.forget_unfinished()
    assert step(again) == step(unbroken)
    assert (again.step, again.multipliers) == (2, unbroken.multipliers)


def test_messages_of_a_step_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scores = owner(tmp_path, 2)
    for _ in range(4):
        scores.score(one("a", "", 1.0))
    assert [record.getMessage() for record in caplog.records] == [
        "the answers have collapsed: most are empty or one and the same text"
    ]


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="1 prompts, 2 answers, 1 rewards and 2 rows"):
        asked_for(["a"], ["b", "c"], [1.0])
    with pytest.raises(UserError, match="the helpful function gave 'good' for an answer"):
        asked_for(["a"], ["b"], ["good"])
    assert asked_for(["a"] * 3, ["b"] * 3, [True, float("nan"), None]).rewards == [1.0, None, None]
    with pytest.raises(UserError, match="answers_a_step is 0"):
        owner(tmp_path, 0)
    owner(tmp_path)
    with pytest.raises(UserError, match="is the journal of other limits"):
        owner(tmp_path, limits={"length": {**LIMITS["length"], "at_most": 4}})
    (tmp_path / "limits.jsonl").unlink()
    with pytest.raises(UserError, match=r"limits\.answers\.jsonl is there and .*limits\.jsonl is not"):
        owner(tmp_path)


def test_a_journal_without_its_answers_is_refused_unless_it_has_no_step(tmp_path: Path) -> None:
    owner(tmp_path)
    answers_file(tmp_path / "limits.jsonl").unlink()
    step(owner(tmp_path))
    answers_file(tmp_path / "limits.jsonl").unlink()
    with pytest.raises(UserError, match=r"limits\.jsonl is there and .*limits\.answers\.jsonl is not"):
        owner(tmp_path)
