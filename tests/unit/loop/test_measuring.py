"""What a run's sources are asked, and what becomes of answers that they cannot measure."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from pddpo_ray.errors import RunError
from pddpo_ray.limits.reading import StatedLimit, stated_limit
from pddpo_ray.limits.sources import Source, one_by_one, within_budget
from pddpo_ray.parts.measuring import SourceMeasures
from pddpo_ray.records import MeasuredValues, Prompt, Response
from tests.support.measured import costs_of

PROMPTS = [Prompt(f"p{number}", (number,), f"question {number} ?") for number in range(4)]
EVERYWHERE = {prompt.token_ids: 1.0 for prompt in PROMPTS}


def answers(*texts: str, prompts: list[Prompt] | None = None) -> list[Response]:
    asked = prompts or [PROMPTS[index // 2 % 4] for index in range(len(texts))]
    return [
        Response(f"a{index}", prompt, tuple(map(len, text.split())), text, 1, 0)
        for index, (prompt, text) in enumerate(zip(asked, texts, strict=True))
    ]


def limit(kind: str = "mean", **given: Any) -> StatedLimit:
    entry = {"at_most": 3, "bounds": [0, 10], **given} if kind == "mean" else given
    return stated_limit("tone", {kind: {"function": "my:tone"}, **entry}, "recipe")


def measures(stated: StatedLimit, tone: Any, **options: Any) -> SourceMeasures:
    source = Source("function my:tone", "sha256:1", one_by_one(tone), stated.scale)
    return SourceMeasures([stated], [source], [options.pop("acting", EVERYWHERE)], 2.0, **options)


def words(answer: Any) -> int:
    return len(answer.response.split())


def test_costs_are_the_sources_numbers_of_which_less_is_better() -> None:
    given = answers("one two", "one")
    np.testing.assert_array_equal(measures(limit(), words)(given, 0).values, [[2.0], [1.0]])
    often = limit("rate", at_least="90 %")
    found = measures(often, lambda answer: words(answer) > 1)(given, 0)
    costs, noise = costs_of([often], found)
    np.testing.assert_array_equal(costs, [[0.0], [1.0]])
    np.testing.assert_array_equal(noise, [[0.0], [0.0]])
    assert not found.missing


def test_the_mean_of_several_opinions_carries_its_noise() -> None:
    """Of 5 opinions 2 say yes: variance of their mean .4 * .6 / 4."""
    rare = limit("rate", at_most="10 %", labels_each=5)
    costs, noise = costs_of([rare], measures(rare, lambda answer: 0.4)(answers("a"), 0))
    assert costs[0, 0] == 0.4
    assert noise[0, 0] == pytest.approx(0.06)


def test_a_source_is_told_prompt_answer_and_set_and_is_asked_on_its_own_set_alone() -> None:
    seen = []

    def tone(answer: Any) -> int:
        seen.append((answer.prompt, answer.response, answer.row["set"], answer.where))
        return 1

    stated = stated_limit(
        "tone", {"mean": {"function": "my:tone"}, "over": "some", "at_most": 3, "bounds": [0, 10]}, "recipe", ["some"]
    )
    acting = {(0,): 0.0, (1,): 2.5}
    found = measures(stated, tone, acting=acting)(answers("a", "b", "c", "d", "e", "f"), 0)
    assert seen == [("question 1 ?", "c", "some", "answer a2"), ("question 1 ?", "d", "some", "answer a3")]
    np.testing.assert_array_equal(np.isfinite(found.values[:, 0]), [False, False, True, True, False, False])
    assert not found.missing


@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, "abstained"), (float("nan"), "gave nan"), ("much", "is no number"), (11, "outside"), (KeyError, "raised")],
)
def test_an_answer_without_a_number_is_a_failure_and_no_number(
    value: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    def tone(answer: Any) -> Any:
        if answer.response == "b" and value is KeyError:
            raise KeyError("tone")
        return value if answer.response == "b" else 1

    with caplog.at_level(logging.WARNING):
        found = measures(limit(), tone)(answers("a", "b", "c"), 0)
    np.testing.assert_array_equal([(row, 0) in found.missing for row in range(3)], [False, True, False])
    np.testing.assert_array_equal(found.values[:, 0], [1.0, np.nan, 1.0])
    (line,) = caplog.messages
    assert line.startswith("limit tone: no number for answer a1: function my:tone ")
    assert reason in line
    with pytest.raises(RunError, match=r"limit tone: function my:tone gave no number for 1 of 3 .* fix the source"):
        measures(limit(failed="20 %"), tone)(answers("a", "b", "c"), 0)


def test_a_budget_takes_whole_draws_evenly_and_the_rest_is_not_asked() -> None:
    prompts = [name for name in ("p", "q", "p", "r", "p", "q") for _ in range(2)]
    taken = within_budget("tone", prompts, 4, seed=3)
    assert len(taken) == 4
    assert all(index ^ 1 in taken for index in taken)
    assert within_budget("tone", prompts, 4, seed=3) == taken
    assert {tuple(within_budget("tone", prompts, 2, seed=seed)) for seed in range(80)} == {
        (2 * draw, 2 * draw + 1) for draw in range(6)
    }
    found = measures(limit(answers=4), words)(answers(*"abcdefgh"), 0)
    assert np.isfinite(found.values).sum() == 4
    assert not found.missing


def test_text_outside_a_grammar_has_the_worst_value_without_being_asked() -> None:
    asked = []

    def tone(answer: Any) -> int:
        asked.append(answer.response)
        return 1

    found = measures(limit(), tone, outside=lambda answer: answer.text == "b")(answers("a", "b"), 0)
    np.testing.assert_array_equal(found.values[:, 0], [1.0, 10.0])
    assert asked == ["a"]


def test_a_worlds_own_labels_fill_the_columns_without_a_source() -> None:
    world = stated_limit("harm", {"logit": {"world": "cost"}, "at_most": 0}, "recipe")
    source = Source("function my:tone", "sha256:1", one_by_one(words), limit().scale)

    def truth(given: Any, seed: int, references: Any = ()) -> MeasuredValues:
        measured = MeasuredValues.nothing(len(given), 2)
        measured.values[:] = 0.5 + seed
        return measured

    both = SourceMeasures([world, limit()], [None, source], [EVERYWHERE, EVERYWHERE], 2.0, labels=truth)
    found = both(answers("a", "b c"), 1)
    np.testing.assert_array_equal(found.values, [[1.5, 1.0], [1.5, 2.0]])
    assert both.versions == {"harm": "world cost", "tone": "sha256:1"}
