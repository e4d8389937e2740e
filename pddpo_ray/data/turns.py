"""Prompts and preferred pairs out of texts and messages, as every format needs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pddpo_ray.data import transcripts
from pddpo_ray.data.example import Answer, Example
from pddpo_ray.data.problems import RowError
from pddpo_ray.records import Message

Fields = Mapping[str, Any]
Means = Literal["helpful", "harmless", "both"]
"""What `chosen` says in a file whose format does not tell."""

SCORES = (
    ("score_chosen", "score_rejected"),
    ("chosen_score", "rejected_score"),
    ("chosen_rating", "rejected_rating"),
    ("chosen-rating", "rejected-rating"),
)
"""Under these names a preference's scores are published beside it."""


def prompt_of(text: str, name: str) -> tuple[Message, ...]:
    """A prompt's turns: a transcript that waits for a reply, or one question."""
    if transcripts.is_open_transcript(text):
        return transcripts.opened(text, name)
    return (Message("user", text),)


def with_system(row: Fields, prompt: tuple[Message, ...]) -> tuple[Message, ...]:
    """The prompt after the row's `system` message, where it has one and the prompt begins with none."""
    system = row.get("system")
    if not isinstance(system, str) or not system.strip() or prompt[0].role == "system":
        return prompt
    return (Message("system", system), *prompt)


def demand_turns(turns: list[Message], name: str) -> None:
    """RowError unless user and assistant alternate after an optional system message and the user speaks last."""
    said = turns[1:] if turns and turns[0].role == "system" else turns
    wrong = [index for index, turn in enumerate(said) if turn.role != ("assistant" if index % 2 else "user")]
    if not said or wrong or len(said) % 2 == 0:
        raise RowError("wrong-turns", f"`{name}` must alternate user and assistant and end with the user")


def preferred(prompt: tuple[Message, ...], chosen: str, rejected: str, means: Means) -> Example:
    """A pair whose first answer somebody preferred, in what `means` says."""
    return judged(prompt, (chosen, rejected), 0, means)


def judged(prompt: tuple[Message, ...], answers: tuple[str, str], winner: int | None, means: Means) -> Example:
    """A pair with the index of the preferred answer; None: a tie."""
    better, safer = (winner if means in (name, "both") else None for name in ("helpful", "harmless"))
    return Example(prompt, (Answer(answers[0]), Answer(answers[1])), better, safer)


def demand_scores_agree(row: Fields) -> None:
    """RowError where the scores beside a preference say that the rejected answer is the better one."""
    for names in SCORES:
        high, low = (row.get(name) for name in names)
        if isinstance(high, int | float) and isinstance(low, int | float) and high < low:
            raise RowError("labels-disagree", f"`{names[0]}` is {high:g} and `{names[1]}` is {low:g}")
