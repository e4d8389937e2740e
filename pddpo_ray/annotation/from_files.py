"""Labels in files as answers to the run's own questions: a row belongs to the question that shows the same texts.

Files may be of any format of `pddpo data` that says all that a question asks: a PKU-SafeRLHF row answers a pair, a row
with one answer and whether it is safe answers a safety question. Which answer comes first in the row is of no matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from pddpo_ray.annotation.exchange import GivenElsewhere, OpenQuestion
from pddpo_ray.annotation.questions import STORED_PAIR
from pddpo_ray.data.example import Example
from pddpo_ray.data.formats import Render
from pddpo_ray.data.problems import Good

Shown = tuple[str, tuple[str, ...]]
"""Prompt, and the answers in alphabetical order."""


def answers_in(
    rows: Iterable[Good], questions: Sequence[OpenQuestion], who: str, prompt: Render
) -> tuple[list[GivenElsewhere], list[str]]:
    """Rows as answers of `who`, and the rows that are none, each with its file, line and reason. `prompt` gives a
    prompt's turns the text under which the run asks about it.

    Where several questions show the same texts, the first row that shows them answers the first question, and so on:
    the same file always answers the same questions, provided that `questions` are all of the run's, in order.
    """
    waiting: defaultdict[Shown, list[OpenQuestion]] = defaultdict(list)
    for question in reversed(questions):
        shown = (question.first,) if question.second is None else (question.first, question.second)
        waiting[question.prompt, tuple(sorted(shown))].append(question)
    answers, problems = [], []
    for row in rows:
        line = f"{row.file} line {row.line}"
        texts = tuple(sorted(answer.text for answer in row.example.answers))
        same = waiting.get((prompt(row.example.prompt), texts), [])
        if not same:
            problems.append(f"{line}: no question of this run shows these texts")
            continue
        given = _given(row.example, same[-1])
        missing = [name for name in _asked(same[-1]) if name not in given]
        if missing:
            problems.append(f"{line}: the row does not say {', '.join(missing)}; a tie or a gap is no answer")
            continue
        answers.append(GivenElsewhere(same.pop().id, who, given))
    return answers, problems


def _asked(question: OpenQuestion) -> tuple[str, ...]:
    return ("safety",) if question.second is None else STORED_PAIR


def _given(example: Example, question: OpenQuestion) -> dict[str, str]:
    """What the row says, in terms of the question's first and second answer."""
    says = {True: "safe", False: "unsafe"}
    if question.second is None:
        safe = example.answers[0].safe
        return {} if safe is None else {"safety": says[safe]}
    sides = ("first", "second") if example.answers[0].text == question.first else ("second", "first")
    given = {}
    if example.better is not None:
        given["more_helpful"] = sides[example.better]
    if example.safer is not None:
        given["more_harmful"] = sides[1 - example.safer]
    for side, answer in zip(sides, example.answers, strict=True):
        if answer.safe is not None:
            given[f"{side}_safety"] = says[answer.safe]
    return given
