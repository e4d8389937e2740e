"""People who answer from a world's truth as soon as they are asked: in place of the queue, which has its own tests."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.special import expit

from pddpo_ray.parts.questions import Answers, Batch, Given, Question
from pddpo_ray.theory.seeds import generator_of
from pddpo_ray.worlds.truth_by_text import TruthByText


class PeopleByTruth:
    """A `questions.PeopleLabeller`: what a world's labellers say, drawn by item and person. Counts what is asked."""

    def __init__(self, truth: TruthByText) -> None:
        self._truth = truth
        self.asked: Counter[str] = Counter()
        """Questions by the name of their batch."""
        self.opened: list[str] = []
        """Batches in the order in which somebody looked for their answers."""

    def ask(self, batch: Batch) -> Answers:
        self.asked[batch.name] += len(batch.questions)
        people = [f"person-{number}" for number in range(batch.labels_each)]
        given = [(one.item, self._given(one, person)) for one in batch.questions for person in people]
        return Answers(given, people=people * len(batch.questions))

    def arrived(self, batch: Batch) -> bool:
        self.opened.append(batch.name)
        return True

    def _given(self, question: Question, person: str) -> Given:
        draws = generator_of(0, "people by truth", question.item, person).random(2)
        first = np.array(self._truth.scores(question.prompt, question.first))
        if question.second is None:
            return {"safety": "unsafe" if draws[0] < expit(first[1]) else "safe"}
        chances = expit(first - np.array(self._truth.scores(question.prompt, question.second)))
        sides = ["first" if draw < chance else "second" for draw, chance in zip(draws, chances, strict=True)]
        return dict(zip(("more_helpful", "more_harmful"), sides, strict=True))


def stand_in(monkeypatch: pytest.MonkeyPatch, people: PeopleByTruth) -> None:
    """In place of the queue, for comparisons and for limits."""
    for module in ("people", "people_measuring"):
        monkeypatch.setattr(f"pddpo_ray.parts.{module}.reached", lambda *_: people)
