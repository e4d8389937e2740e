"""Limits inside any trainer: what is measured, moved, journalled and said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.errors import UserError
from pddpo_ray.integrations.controller import LimitController
from pddpo_ray.theory.step_dual import StepLimit, StepState, next_state

LIMITS: dict[str, Any] = {
    "length": {"mean": {"rule": "words"}, "at_most": 3, "bounds": [0, 10]},
    "kept": {"rate": {"rule": "empty"}, "at_least": "40 %", "over": "benign"},
}
PROMPTS = ["a", "a", "b", "b"]
ANSWERS = ["one two three four", "one two", "one", ""]
ROWS: list[dict[str, Any]] = [{"set": "benign"}, {"set": "benign"}, {"set": ["benign", "other"]}, {"set": "other"}]


def test_values_are_the_sources_and_stay_inside_a_limits_set() -> None:
    values = LimitController(LIMITS).measure(PROMPTS, ANSWERS, ROWS)
    assert values == {"length": [4.0, 2.0, 1.0, 0.0], "kept": [0.0, 0.0, 0.0, None]}


def test_a_step_moves_each_multiplier_as_the_formula_does() -> None:
    controller = LimitController(LIMITS)
    values = controller.measure(PROMPTS, ANSWERS, ROWS)
    seen = controller.observe(values, PROMPTS, step=0)
    words = next_state(StepLimit("length", 3.0, False, 10.0), StepState(), 1.75, 1.479019945774904)
    empty = next_state(StepLimit("kept", 0.6, True, 1.0), StepState(), 1.0, 0.0, spread=False)
    assert controller.multipliers == pytest.approx({"length": words.multiplier, "kept": empty.multiplier})
    assert empty.multiplier > words.multiplier == 0.0
    assert (seen["length"].estimate, seen["length"].n, seen["length"].silent) == (1.75, 4, 0.0)
    assert (seen["kept"].estimate, seen["kept"].n, seen["kept"].failed, seen["kept"].silent) == (0.0, 3, 1, 1.0)
    assert controller.messages() == [
        "kept: in every group all answers cost the same, so that no gradient can lower it; sample hotter, or more"
        " answers to each prompt"
    ]


def test_an_answer_without_a_number_is_no_zero_and_a_step_without_any_moves_nothing() -> None:
    controller = LimitController({"length": LIMITS["length"]})
    controller.observe({"length": [8.0, None, float("nan")]}, ["a", "a", "a"], step=0)
    before = controller.multipliers
    assert before["length"] > 0
    seen = controller.observe({"length": [None, None]}, ["a", "a"], step=1)
    assert (seen["length"].estimate, seen["length"].failed) == (None, 2)
    assert controller.multipliers == before
    assert controller.messages() == ["length: no answer of the step could be measured; its multiplier stands"]


@pytest.mark.parametrize("answers", [["", "", "", "x"], ["same", "same", "same ", "x"]])
def test_a_collapse_is_said(answers: list[str]) -> None:
    controller = LimitController({"length": LIMITS["length"]})
    controller.observe({"length": [1.0, 2.0, 3.0, 4.0]}, PROMPTS, step=0, answers=answers)
    assert "collapsed" in controller.messages()[0]
    controller.observe({"length": [1.0, 2.0, 3.0, 4.0]}, PROMPTS, step=1, answers=ANSWERS)
    assert controller.messages() == []


def drive(controller: LimitController, first: int, last: int) -> list[dict[str, float]]:
    """Steps whose answers get shorter as the multiplier rises."""
    told = []
    for step in range(first, last):
        length = 8.0 - controller.multipliers["length"] + 0.1 * (step % 3)
        controller.observe({"length": [length, length + 1.0]}, ["a", "a"], step=step)
        told.append(controller.multipliers)
    return told


@pytest.mark.run
def test_a_journal_gives_the_same_multipliers_after_a_torn_line_and_a_checkpoint(tmp_path: Path) -> None:
    limits = {"length": LIMITS["length"]}
    unbroken = drive(LimitController(limits), 0, 9)
    journal = tmp_path / "out" / "limits.jsonl"
    begun = LimitController(limits, journal=journal)
    assert drive(begun, 0, 6) == unbroken[:6]
    with journal.open("a") as file:
        file.write('{"step": 6, "sta')
    again = LimitController(limits, journal=journal)
    assert again.multipliers == unbroken[5]
    again.rewind(4)  # a checkpoint after four steps
    assert again.multipliers == unbroken[3]
    assert drive(again, 4, 7) == unbroken[4:7]
    third = LimitController(limits, journal=journal)
    assert third.multipliers == unbroken[6]
    third.rewind(0)
    assert third.multipliers == {"length": 0.0}
    assert all(json.loads(line) for line in journal.read_text().splitlines())


def test_a_journal_of_other_limits_is_refused(tmp_path: Path) -> None:
    journal = tmp_path / "limits.jsonl"
    LimitController({"length": LIMITS["length"]}, journal=journal)
    other = {"length": {**LIMITS["length"], "at_most": 4}}
    with pytest.raises(UserError, match="is the journal of other limits"):
        LimitController(other, journal=journal)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"kl": "reference", "at_most": 8}, "is a `mean` or a `rate`; got `kl`"),
        (
            {"rate": {"people": {"question": "Is it so?"}}, "at_most": "5 %"},
            "people cannot measure the answers of a step",
        ),
        ({"mean": {"world": "cost"}, "at_most": 1, "bounds": [0, 2]}, "world cannot measure the answers of a step"),
    ],
)
def test_what_a_step_cannot_measure_is_refused(limit: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LimitController({"one": limit})
