"""Limits inside any trainer: what is measured, moved, journalled and said."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.errors import RunError, UserError
from pddpo_ray.integrations.controller import LimitController, Value
from pddpo_ray.integrations.schedule import Schedule
from pddpo_ray.limits.sources import Unmeasured
from tests.unit.math.test_stepwise import limited, next_state

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
    words = next_state(limited("length", 3.0, 10.0), 1.75, 1.479019945774904)
    empty = next_state(limited("kept", 0.6, 1.0, rate=True), 1.0, 0.0, spread=False)
    assert controller.multipliers == pytest.approx({"length": words.price, "kept": empty.price})
    assert empty.price > words.price == 0.0
    assert (seen["length"].estimate, seen["length"].n, seen["length"].silent) == (1.75, 4, 0.0)
    assert (seen["kept"].estimate, seen["kept"].n, seen["kept"].missing, seen["kept"].silent) == (0.0, 3, {}, 1.0)
    assert controller.messages() == [
        "kept: in every group all answers cost the same, so that no gradient can lower it; sample hotter, or more"
        " answers to each prompt"
    ]


CUT = Unmeasured("was cut off: 4096 tokens")


def test_an_answer_that_could_not_be_measured_counts_as_the_worst_by_its_reason() -> None:
    """Words 1 and 3, one cut off, one nan: (1 + 3 + 10 + 10) / 4 = 6; the answer of another set counts for nothing."""
    controller = LimitController({"length": LIMITS["length"]})
    values: list[Value] = [1.0, 3.0, CUT, float("nan"), None]
    assert controller.costs("length", values) == [1.0, 3.0, 10.0, 10.0, None]
    seen = controller.observe({"length": values}, ["a"] * 5, step=0)["length"]
    assert (seen.estimate, seen.n, seen.missing) == (6.0, 2, {"was cut off": 1, "gave nan": 1})
    assert (seen.missing_share, seen.share_missing_by("was cut off")) == (0.5, 0.25)
    assert controller.multipliers["length"] > 0, "without the missing ones the mean would keep the limit"
    assert controller.messages() == [
        "length: no number for 2 of 4 answers (1 was cut off, 1 gave nan), which count as the worst"
    ]


@pytest.mark.parametrize(
    ("limit", "cost"),
    [
        ({"mean": {"rule": "words"}, "at_least": 3, "bounds": [0, 10]}, 0.0),
        ({"mean": {"rule": "words"}, "at_least": 3}, 0.0),  # words are never fewer than none
        ({"rate": {"rule": "empty"}, "at_most": "5 %"}, 1.0),
        ({"rate": {"rule": "empty"}, "at_least": "40 %"}, 1.0),
        ({"mean": {"rule": "words"}, "at_most": 3, "bounds": [0, 10], "versus": "reference"}, 10.0),
        ({"mean": {"rule": "words"}, "at_most": 3}, None),
    ],
)
def test_the_worst_is_that_of_the_limits_bounds(limit: dict[str, Any], cost: float | None) -> None:
    assert LimitController({"one": limit}).costs("one", [CUT]) == [cost]


def test_without_bounds_a_missing_answer_counts_for_nothing_and_the_log_asks_for_them() -> None:
    controller = LimitController({"length": {"mean": {"rule": "words"}, "at_most": 3}})
    controller.observe({"length": [8.0, CUT]}, ["a", "a"], step=0)
    before = controller.multipliers
    assert before["length"] > 0
    seen = controller.observe({"length": [CUT, CUT]}, ["a", "a"], step=1)["length"]
    assert (seen.estimate, seen.missing_share) == (None, 1.0)
    assert controller.multipliers == before
    assert controller.messages() == [
        "length: no number for 2 of 2 answers (2 was cut off), which count for nothing until `bounds` are stated",
        "length: no answer of the step counted; its multiplier stands",
    ]


def test_a_source_that_gives_a_number_to_nobody_raises_the_multiplier() -> None:
    controller = LimitController({"length": LIMITS["length"]})
    controller.observe({"length": [CUT, CUT]}, ["a", "a"], step=0)
    assert controller.multipliers["length"] > 0


def test_more_missing_answers_than_may_fail_end_the_step_before_anything_moves() -> None:
    controller = LimitController({"length": {**LIMITS["length"], "failed": "25 %"}})
    controller.observe({"length": [9.0, 1.0, 1.0, CUT]}, PROMPTS, step=0)
    before = controller.multipliers
    with pytest.raises(RunError, match=r"length: no number for 2 of 4 answers of a step \(2 was cut off\), more than"):
        controller.observe({"length": [9.0, CUT, 1.0, CUT]}, PROMPTS, step=1)
    assert controller.multipliers == before


def test_one_answer_to_a_prompt_is_compared_with_all() -> None:
    """The integral rises above 0, as it does in groups."""
    controller = LimitController({"length": LIMITS["length"]})
    seen = controller.observe({"length": [8.0, 6.0]}, ["a", "b"], step=0)["length"]
    assert seen.silent == 0.0
    controller.observe({"length": [3.0, 3.0]}, ["a", "b"], step=1)
    assert controller.multipliers["length"] > 0


RULES: list[tuple[dict[str, Any], float]] = [
    # prices; e = (8 - 3) / 10 = 0.5 ranges, d is 0.2 below the middle: eta = 1 / (0.7 sqrt 25) and no cap
    ({"rule": {"kind": "projected", "curvature_cap": False}, "rho": 1.0}, 1.0 + 0.5 / 3.5),
    ({"rule": {"kind": "anytime", "curvature_cap": False, "first_step": 0.4}, "rho": 1.0}, 1.2),
    ({"rule": {"kind": "log", "rate": 0.5}, "rho": 1.0}, math.exp(0.5 * 1.0 * 0.5)),
    ({"rule": {"kind": "fixed"}, "first": 0.7}, 0.7),
    ({"rule": {"kind": "stepwise"}, "first": 0.3, "upper": 2.0}, 2.0),
    ({"upper": 3.0}, 3.0),
    # variance of 7 and 9 within the prompt 2, 0.02 in squared ranges; (2 * 0.02 + 16 * 0.25^2) / 18 of it all
    ({"rule": {"kind": "newton"}, "rho": 9.0, "first": 1.0}, 1.0 + 0.1 * 0.5 / (1.04 / 18)),
]


@pytest.mark.parametrize(("own", "price"), RULES)
def test_a_limit_moves_by_the_rule_that_it_names(own: dict[str, Any], price: float) -> None:
    limits = {"length": {**LIMITS["length"], "dual": own}}
    controller = LimitController(limits, schedule=Schedule(steps=25, beta=0.1))
    controller.observe({"length": [7.0, 9.0]}, ["a", "a"], step=0)
    assert controller.multipliers["length"] == pytest.approx(price)


def test_multipliers_stand_still_while_the_trainer_warms_up(tmp_path: Path) -> None:
    journal, schedule = tmp_path / "limits.jsonl", Schedule(warmup_steps=2)
    controller = LimitController({"length": LIMITS["length"]}, journal=journal, schedule=schedule)
    told = drive(controller, 0, 3)
    assert [one["length"] for one in told[:2]] == [0.0, 0.0]
    assert told[2]["length"] > 0
    again = LimitController({"length": LIMITS["length"]}, journal=journal, schedule=schedule)
    assert again.multipliers == told[2]
    with pytest.raises(UserError, match="is the journal of other limits, or of limits that moved by another rule"):
        LimitController({"length": LIMITS["length"]}, journal=journal)


@pytest.mark.parametrize(
    ("own", "bounds", "message"),
    [
        ({"rule": {"kind": "newton"}, "rho": 1.0}, [0, 10], r"length\.dual: the rule newton needs the number of steps"),
        ({"rule": {"kind": "anytime"}, "rho": 1.0}, [0, 10], "needs the trainer's weight of the KL divergence"),
        ({"rule": {"kind": "log"}}, [0, 10], r"length\.dual: give `rho`"),
        ({"rule": {"kind": "log"}, "rho": 1.0}, None, r"counts in ranges of the measure; state `bounds"),
        ({"rule": {"kind": "fixed"}}, None, "the rule fixed needs `first`"),
        ({"rule": {"kind": "lgo"}}, [0, 10], r"length\.dual\.rule.*lgo"),
        ("log", [0, 10], "says how its multiplier moves"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_one_line(own: Any, bounds: list[int] | None, message: str) -> None:
    limit = {"mean": {"rule": "words"}, "at_most": 3, "dual": own, **({"bounds": bounds} if bounds else {})}
    with pytest.raises(UserError, match=message):
        LimitController({"length": limit})


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
