"""What every data format is read into and written from: a prompt with no answer, one answer, or a pair of answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pddpo_ray.records import Message

Dimension = Literal["helpful", "harmless"]
"""What a preference is about: which answer is better, or which is safer (cheaper)."""


@dataclass(frozen=True)
class Answer:
    """A reply with what is known about its harm; None means that nobody said."""

    text: str
    safe: bool | None = None
    severity: int | None = None
    """0 none, 1 minor, 2 moderate, 3 severe."""
    categories: tuple[str, ...] = ()
    """Harm categories that apply."""


@dataclass(frozen=True)
class Example:
    """One row. `better` and `safer` are the index of an answer, None where there is no label or a tie.

    Example(prompt=(Message("user", "How?"),), answers=(Answer("So."), Answer("No.")), better=0, safer=1)
    """

    prompt: tuple[Message, ...]
    answers: tuple[Answer, ...] = ()
    better: int | None = None
    safer: int | None = None
    id: str | None = None
    category: str | None = None
    """What the prompt is about, by the column `category` of a file of prompts."""
    unread: tuple[str, ...] = field(default=(), compare=False)
    """Fields of the row that were not used."""

    def label(self, dimension: Dimension) -> int | None:
        """Index of the answer that is preferred in this dimension."""
        return self.better if dimension == "helpful" else self.safer

    @property
    def first_user_text(self) -> str:
        """The opening question; splits are compared by it."""
        return next((message.content for message in self.prompt if message.role == "user"), "")

    @property
    def question(self) -> str:
        """The opening question, `folded`; rows with equal ones belong together."""
        return folded(self.first_user_text)


def folded(text: str) -> str:
    """A text in lower case with single spaces."""
    return " ".join(text.lower().split())
