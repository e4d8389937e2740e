"""Answers as trainers hand them over: the assistant's own words are measured, and a data set must ask something."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset

from pddpo_ray.errors import UserError
from pddpo_ray.integrations import openrlhf
from pddpo_ray.integrations.trl import LimitedRewards, LimitedScore
from pddpo_ray.integrations.turns import answer_text, prompt_text

WORDS: dict[str, Any] = {"length": {"mean": {"rule": "words"}, "at_most": 6, "bounds": [0, 100]}}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "tides", "arguments": "{}"}}]}
PAGE = {"role": "tool", "content": " ".join(["tide"] * 40)}
REPLY = {"role": "assistant", "content": "At noon."}
PARTS = {"role": "assistant", "content": [{"type": "text", "text": "At "}, {"type": "text", "text": "noon."}]}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("At noon.", "At noon."),
        ([REPLY], "At noon."),
        ([CALL, PAGE, REPLY], "At noon."),
        ([{"role": "assistant", "content": "Let me look."}, PAGE, REPLY], "Let me look.\n\nAt noon."),
        ([PARTS], "At noon."),
        (
            [{"role": "assistant", "content": [{"type": "image"}, "At noon.", {"text": None}]}],
            "At noon.",
        ),
        ([REPLY, {"role": "user", "content": "Really?"}, {"content": "Yes."}], "At noon.\n\nYes."),
        ([CALL], ""),
        ([], ""),
    ],
)
def test_an_answer_is_what_the_model_says(answer: Any, text: str) -> None:
    assert answer_text(answer) == text


def test_a_prompt_is_all_that_was_said_before() -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "When?"}]},
    ]
    assert prompt_text(turns) == "Be brief.\n\nWhen?"
    assert (prompt_text("When?"), prompt_text(None)) == ("When?", "")


@pytest.mark.parametrize("completion", [[CALL, PAGE, REPLY], [PARTS], "At noon."])
def test_trl_measures_the_models_words_alone(completion: Any) -> None:
    (cost,) = LimitedRewards(WORDS).reward_funcs
    question = [[{"role": "user", "content": "When?"}]]
    assert cost(question, [completion], log_metric=lambda *told: None) == [-2.0]


def test_an_async_function_is_refused_at_load() -> None:
    async def slow(*told: Any, **more: Any) -> list[float]:
        return [0.0]

    with pytest.raises(UserError, match="the helpful function is `async`"):
        LimitedScore(slow, WORDS)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="the helpful function is `async`"):
        openrlhf.limited(slow, SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rows", [{"question": ["When?"]}, {"prompt": ["  "]}, {"prompt": [[{"role": "user", "content": ""}]]}]
)
def test_a_data_set_that_asks_nothing_is_refused_before_training(rows: dict[str, list[Any]]) -> None:
    score = LimitedScore(lambda prompts, completions, **more: [0.0], WORDS)
    trainer = SimpleNamespace(train_dataset=Dataset.from_dict(rows), reward_funcs=[score.reward_func])
    with pytest.raises(UserError, match="no question in its column `prompt`"):
        score.attach(trainer)  # type: ignore[arg-type]
