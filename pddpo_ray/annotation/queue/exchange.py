"""Questions out and answers in, for other tools and for files. The queue's own rules decide about every answer.

    questions = open_questions(store)                     # questions that still need labels
    report = take_answers(store, rules, "argilla", answers)   # each counted, surplus, repeated or refused, and why
    examples(store)                                       # finished labels as rows for training

Repeating either direction changes nothing: the id of a question is a hash of its content, the key of an answer a hash
of who gave which answer to which question.

A row of a file answers the question that shows the same texts, whichever answer comes first in the row. It may be of
any format of `pddpo data` that says all that the question asks: a PKU-SafeRLHF row answers a pair, a row with one
answer and whether it is safe answers a safety question.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, select

from pddpo_ray.annotation.people.accounts import People, Person, Role
from pddpo_ray.annotation.queue.answer_forms import OF_LIMITS_ALONE, STORED
from pddpo_ray.annotation.queue.answers import Answers, Submission
from pddpo_ray.annotation.queue.queue_rules import Outcome, QueueError, Rules
from pddpo_ray.data.checks.problems import Good
from pddpo_ray.data.formats.example import Answer, Example, Message
from pddpo_ray.data.formats.standard import Render
from pddpo_ray.journal.annotation_schema import annotator, answer, question_round, seat, task
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.questions import TIE, contradicts_itself

OF_SAFETY = task.c.asks.is_(None) & task.c.kind.not_in(OF_LIMITS_ALONE)
"""Questions that belong to no limit."""
INDEX = {"first": 0, "second": 1}
NAMES = {Outcome.COUNTED: "counted", Outcome.SURPLUS: "surplus", Outcome.REFUSED: "skipped"}


@dataclass(frozen=True)
class OpenQuestion:
    """A question that still needs labels by `wanted` more people. Its `id` names its content and its round."""

    id: str
    kind: str
    round: int
    purpose: str
    prompt: str
    first: str
    second: str | None
    wanted: int


@dataclass(frozen=True)
class GivenElsewhere:
    """What somebody said in another tool. `given` is in stored form, e.g. {"safety": "unsafe"}; empty: a refusal."""

    question: str
    who: str
    given: Mapping[str, str]
    ms_spent: int = 0


@dataclass
class Taken:
    """How many answers counted, were surplus, were repeated, or were skips by people; and which the queue did not take,
    with the reason."""

    outcomes: Counter[str] = field(default_factory=Counter)
    not_taken: list[str] = field(default_factory=list)


def open_questions(store: Store) -> list[OpenQuestion]:
    """Questions of the run's open batches that still need labels, in order; no control questions, and none of a limit's
    own, which this project's page alone asks."""
    return _questions(store, question_round.c.state == "open", task.c.state == "open", task.c.seats < task.c.needed)


def all_questions(store: Store) -> list[OpenQuestion]:
    """Every question that the run ever asked, in order; no control questions, and none of a limit's own."""
    return _questions(store)


def _questions(store: Store, *conditions: ColumnElement[bool]) -> list[OpenQuestion]:
    query = (
        select(task, question_round.c.round, question_round.c.purpose)
        .join(question_round, question_round.c.id == task.c.question_round)
        .where(question_round.c.run == store.run, task.c.gold.is_(None), OF_SAFETY, *conditions)
        .order_by(question_round.c.round, question_round.c.purpose, task.c.position)
    )
    with reading(store.engine) as connection:
        return [
            OpenQuestion(
                row.id, row.kind, row.round, row.purpose, row.prompt, row.first, row.second, row.needed - row.seats
            )
            for row in connection.execute(query)
        ]


def take_answers(store: Store, rules: Rules, source: str, answers: Iterable[GivenElsewhere]) -> Taken:
    """Hands answers from `source` to the queue. People get accounts of their own here, which cannot sign in."""
    answers_of_run, people = Answers(store, rules), _Accounts(store, source)
    report = Taken()
    for reply in answers:
        kind = "label" if reply.given else "abstain"
        submission = Submission(kind, reply.given, ms_spent=reply.ms_spent, revealed=True)
        try:
            receipt = answers_of_run.receive(people.of(reply.who), key_of(source, reply), reply.question, submission)
        except QueueError as error:
            report.not_taken.append(f"{reply.who}, question {reply.question[:12]}: {error}")
            continue
        report.outcomes["repeated" if receipt.repeated else NAMES[receipt.outcome]] += 1
    return report


def key_of(source: str, answer: GivenElsewhere) -> str:
    """The key of an answer follows from what it says, so that fetching it again is no second answer."""
    content = json.dumps([source, answer.who, answer.question, dict(answer.given)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:40]


def examples(store: Store, *, round_: int | None = None) -> Iterator[Example]:
    """Labels that count, as examples: one per label of a pair question, with all that it asks, and per safety label.

    A tie is no label. What contradicts itself is left out, as it is of training, and so are answers to a limit's own
    question, which say nothing about safety. Nothing says who labelled.
    """
    return (_example(row) for row in _counted_answers(store, round_) if not contradicts_itself(row.given))


def contradictory(store: Store, *, round_: int | None = None) -> int:
    """Labels that count, and are left out because they contradict themselves."""
    return sum(contradicts_itself(row.given) for row in _counted_answers(store, round_))


def _counted_answers(store: Store, round_: int | None) -> Iterator[Any]:
    query = (
        select(task, answer.c.given, seat.c.number, question_round.c.round)
        .join(seat, seat.c.task == task.c.id)
        .join(answer, answer.c.seq == seat.c.answer)
        .join(question_round, question_round.c.id == task.c.question_round)
        .where(question_round.c.run == store.run, task.c.gold.is_(None), OF_SAFETY)
        .order_by(question_round.c.round, question_round.c.purpose, task.c.position, seat.c.number)
    )
    if round_ is not None:
        query = query.where(question_round.c.round == round_)
    with reading(store.engine) as connection:
        yield from connection.execute(query)


def _example(row: Any) -> Example:
    prompt, name = (Message("user", row.prompt),), f"{row.item}-{row.number}"
    if row.kind == "safety":
        return Example(prompt, (Answer(row.first, row.given["safety"] == "safe"),), id=name)
    costlier = None if row.given["more_harmful"] == TIE else INDEX[row.given["more_harmful"]]
    return Example(
        prompt,
        (
            Answer(row.first, row.given["first_safety"] == "safe"),
            Answer(row.second, row.given["second_safety"] == "safe"),
        ),
        better=INDEX.get(row.given["more_helpful"]),
        safer=None if costlier is None else 1 - costlier,
        id=name,
    )


class _Accounts:
    """One account per person of another tool; its token is thrown away at once."""

    def __init__(self, store: Store, source: str) -> None:
        self._people, self._source = People(store), source
        with reading(store.engine) as connection:
            rows = connection.execute(select(annotator.c.id, annotator.c.handle)).all()
        self._ids = {row.handle: row.id for row in rows}

    def of(self, name: str) -> Person:
        handle = re.sub(r"[^\w .@-]", "-", f"{self._source} {name}")[:100]
        if handle not in self._ids:
            self._ids[handle] = self._people.enlist_elsewhere(handle, by=self._source).id
        return Person(self._ids[handle], handle, Role.ANNOTATOR, sees_harmful=True, daily_cap=0, active=False)


Shown = tuple[str, tuple[str, ...]]
"""Prompt, and the answers in alphabetical order."""


def answers_in(
    rows: Iterable[Good], questions: Sequence[OpenQuestion], person: str, prompt: Render
) -> tuple[list[GivenElsewhere], list[str]]:
    """Rows as answers of `person`, and the rows that are none, each with its file, line and reason. `prompt` renders a
    prompt's turns as the text that the run shows.

    Where several questions show the same texts, the first row that shows them answers the first question, and so on:
    the same file answers the same questions where `questions` are all of the run's, in order.
    """
    waiting: defaultdict[Shown, list[OpenQuestion]] = defaultdict(list)
    for question in reversed(questions):
        shown = (question.first,) if question.second is None else (question.first, question.second)
        waiting[question.prompt, tuple(sorted(shown))].append(question)
    answers, problems = [], []
    for row in rows:
        line = f"{row.file} line {row.line}"
        texts = tuple(sorted(answer.text for answer in row.example.answers))
        candidates = waiting.get((prompt(row.example.prompt), texts))
        if not candidates:
            reason = "no question of this run shows these texts"
            if candidates is not None:
                reason = "earlier rows answered every question that shows these texts"
            problems.append(f"{line}: {reason}")
            continue
        values = _label_values(row.example, candidates[-1])
        missing = [name for name in _answer_fields(candidates[-1]) if name not in values]
        if missing:
            problems.append(f"{line}: the row does not say {', '.join(missing)}; a tie or a gap is no answer")
            continue
        answers.append(GivenElsewhere(candidates.pop().id, person, values))
    return answers, problems


def _answer_fields(question: OpenQuestion) -> tuple[str, ...]:
    return STORED[question.kind]


def _label_values(example: Example, question: OpenQuestion) -> dict[str, str]:
    """What the row says, in terms of the question's first and second answer."""
    words = {True: "safe", False: "unsafe"}
    if question.second is None:
        safe = example.answers[0].safe
        return {} if safe is None else {"safety": words[safe]}
    sides = ("first", "second") if example.answers[0].text == question.first else ("second", "first")
    values = {}
    if example.better is not None:
        values["more_helpful"] = sides[example.better]
    if example.safer is not None:
        values["more_harmful"] = sides[1 - example.safer]
    for side, response in zip(sides, example.answers, strict=True):
        if response.safe is not None:
            values[f"{side}_safety"] = words[response.safe]
    return values
