"""Questions that people answer, and what their answers count. A `PeopleLabeller` puts them to people.

A *safety* question shows one answer: is it safe or unsafe? A *pair* question shows two answers: which is more helpful,
which is more harmful, is each safe. One pair question makes one complete row of the PKU-SafeRLHF kind. A limit's own
question is a safety question with a text (yes or no), a *better* question (which of two answers is the better one) or
a *number* question (a number within bounds). Answers speak of first and second, never of left and right.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal, Protocol

from pddpo_ray.records import Pair, Prompt, Response

Kind = Literal["safety", "pair", "better", "number"]
Given = dict[str, str]
"""An answer by what was asked, e.g. {"safety": "unsafe"} or {"better": "first"}."""
Turns = tuple[tuple[str, str], ...]
TIE = "tie"
UNKNOWN_RISK = 1.0
"""Risk of a question of which nothing is known: who opted out of harmful texts does not get it."""
WINS: Mapping[str, float] = {"first": 1.0, TIE: 0.5, "second": 0.0}
"""What the choice of the better answer counts for the first one."""


@dataclass(frozen=True)
class Question:
    """One item to be labelled. `item` is the response's or the pair's id in the run.

    `provenance` says who wrote the answers (`policy_version`, for a pair also `second_policy_version`) and is never
    shown to annotators. `gold` is the known answer of a control question in stored form, e.g. {"safety": "unsafe"}.
    `risk` in [0, 1] is compared with what a person agreed to see, and is the highest where nobody knows it; `priority`
    orders questions of one round. `asks` is a limit's own question, in Markdown; of a safety question "unsafe" then is
    its yes and "safe" its no; None: whether the answer is safe, or which is better. `bounds` are those of a number.
    `language` is the code of the language that one has to know for it; `turns` are role and text of a prompt that is a
    conversation.
    """

    kind: Kind
    item: str
    prompt: str
    first: str
    second: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    risk: float = UNKNOWN_RISK
    priority: float = 0.0
    gold: Given | None = None
    asks: str | None = None
    language: str | None = None
    turns: Turns = ()
    bounds: tuple[float, float] | None = None

    def digest(self) -> str:
        """Hash of what is shown and where it comes from. Neither who is asked nor how it is laid out changes it."""
        shown = [self.kind, self.item, self.prompt, self.first, self.second]
        content: list[Any] = [*shown, dict(self.provenance), self.gold]
        if self.asks is not None:  # questions of earlier versions keep their hash
            content.append(self.asks)
        if self.bounds is not None:
            content.append(list(self.bounds))
        return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def safety_question(response: Response, *, risk: float = UNKNOWN_RISK, asks: str | None = None) -> Question:
    """Is this answer safe? Or what a limit asks about it."""
    provenance = {"policy_version": response.policy_version}
    turns = _turns(response.prompt)
    return Question(
        "safety", response.id, response.prompt.text, response.text, None, provenance, risk, asks=asks, turns=turns
    )


def number_question(response: Response, bounds: tuple[float, float], *, asks: str) -> Question:
    """What number within the bounds has this answer? By what a limit asks."""
    provenance = {"policy_version": response.policy_version}
    prompt, turns = response.prompt.text, _turns(response.prompt)
    return Question(
        "number", response.id, prompt, response.text, None, provenance, asks=asks, bounds=bounds, turns=turns
    )


def better_question(response: Response, reference: Response, *, asks: str | None = None) -> Question:
    """Which of two answers to one prompt is better? By what a limit asks, or on the whole."""
    provenance, turns, prompt = _policy_versions(response, reference), _turns(response.prompt), response.prompt.text
    return Question("better", response.id, prompt, response.text, reference.text, provenance, asks=asks, turns=turns)


def pair_question(pair: Pair, *, risk: float = UNKNOWN_RISK) -> Question:
    """Which of two answers is more helpful, which is more harmful?"""
    provenance, turns = _policy_versions(pair.first, pair.second), _turns(pair.prompt)
    return Question("pair", pair.id, pair.prompt.text, pair.first.text, pair.second.text, provenance, risk, turns=turns)


def _turns(prompt: Prompt) -> Turns:
    return tuple((turn.role, turn.content) for turn in prompt.messages) if len(prompt.messages) > 1 else ()


def _policy_versions(first: Response, second: Response) -> dict[str, Any]:
    return {"policy_version": first.policy_version, "second_policy_version": second.policy_version}


def value_of(stored: Mapping[str, str]) -> float:
    """What a limit counts of an answer to its question: 1 for yes and for a win, 0 for no and for a loss, a half for a
    tie, or the number itself."""
    if "number" in stored:
        return float(stored["number"])
    return WINS[stored["better"]] if "better" in stored else float(stored["safety"] == "unsafe")


def contradicts_itself(answer: Mapping[str, str]) -> bool:
    """Whether an answer (in stored form) calls the only safe one of two answers the more harmful one.

    Such an answer is a slip. It is admitted neither to training nor to an export; the page asks before it is sent.
    """
    opposite = {"first": "second", "second": "first"}
    harmful = answer.get("more_harmful")
    if harmful not in opposite:
        return False
    return answer.get(f"{harmful}_safety") == "safe" and answer.get(f"{opposite[harmful]}_safety") == "unsafe"


@dataclass(frozen=True)
class Batch:
    """Questions of one round that people get together, e.g. `measure-answers-brand`."""

    name: str
    questions: Sequence[Question]
    labels_each: int
    """How many different people answer each question."""
    labels_of: Mapping[str, int] = field(default_factory=dict)
    """Items with another number of people, and that number."""
    priority: int = 1
    """Of the open batches of a round the highest comes first."""


@dataclass(frozen=True)
class Answers:
    """What people answered to a batch: (item, answer) in the order of arrival."""

    given: Sequence[tuple[str, Given]]
    decided: Mapping[str, Given] = field(default_factory=dict)
    """By item, what a lead decided where people differ."""
    people: Sequence[str] = ()
    """Who gave each answer, by pseudonym, where that is known."""

    def by_item(self, batch: Batch) -> dict[str, list[tuple[Given, str | None]]]:
        """The answers to each question of the batch, and who gave them; [] where nobody answered."""
        answers: dict[str, list[tuple[Given, str | None]]] = {question.item: [] for question in batch.questions}
        for (item, answer), person in zip_longest(self.given, self.people):
            answers[item].append((answer, person))
        return answers


class PeopleLabeller(Protocol):
    """Reaches people: what the code of the registry's kind `labellers` makes for a run."""

    def ask(self, batch: Batch) -> Answers:
        """Waits for the answers. Raises ParkedError where the run ends until they are there."""
        ...

    def arrived(self, batch: Batch) -> bool:
        """Whether `ask` has nothing to wait for; opens the questions, so that people can begin."""
        ...
