"""A judge as the source of a limit: a question text of the user's own about one answer, or about two.

    rate   [[yes]] or [[no]] to the question
    mean   a number between the limit's bounds
    versus reference: which of the two answers is better, asked in both orders; 1 for a win, a half for a tie

A reply that cannot be read, one that is lost and one that says [[unsure]] are no numbers. What the judge thinks or
quotes is not what it says (`scoring.judges.replies`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from pddpo_ray.errors import UserError
from pddpo_ray.limits.local_sources import question_text
from pddpo_ray.limits.quantities import VERDICT, Scale
from pddpo_ray.limits.sources import NO_REFERENCE, Answer, Opening, Source, Unmeasured, fingerprint
from pddpo_ray.scoring.judges.endpoint import ChatEndpoint, Lost
from pddpo_ray.scoring.judges.judge import Both, Judge, PairTexts, Question, orders
from pddpo_ray.scoring.judges.judge_prompts import SYSTEM_OWN, own_comparison, own_score, own_verdict
from pddpo_ray.scoring.judges.replies import numbers_in
from pddpo_ray.theory.seeds import seed_of

Form = Literal["verdict", "score", "comparison"]
VERDICTS = {"yes": 1.0, "no": 0.0}
WINS: Mapping[str, Both] = {"a": (1.0, 0.0), "tie": (0.5, 0.5), "b": (0.0, 1.0)}
BATCH = 32


@dataclass(frozen=True)
class JudgeOfLimit:
    """Asks about answers; `labels_each` opinions on each, whose mean is the value."""

    judge: Judge
    question: Question[Any]
    compares: bool
    """Whether the reference's answer is shown too; the question then has a number for each."""
    labels_each: int = 1
    first: int = 0
    """Number of the first opinion; other opinions are asked with other seeds."""

    def __call__(self, answers: Sequence[Answer]) -> list[float | Unmeasured]:
        opinions = iter(self._ask_comparisons(answers) if self.compares else self._ask_values(answers))
        return [
            NO_REFERENCE if self.compares and answer.reference is None
            else _mean([next(opinions) for _ in self._numbers])
            for answer in answers
        ]  # fmt: skip

    def _ask_values(self, answers: Sequence[Answer]) -> list[float | Lost]:
        texts = [(answer.prompt, answer.response) for answer in answers]
        return self.judge.values(self.question, [(pair, self._seed(pair, n)) for pair in texts for n in self._numbers])

    def _ask_comparisons(self, answers: Sequence[Answer]) -> list[float | Lost]:
        """The answer's share of the win over the reference's."""
        pairs = [
            (answer.prompt, answer.response, answer.reference) for answer in answers if answer.reference is not None
        ]
        requests = [(pair, self._seeds(pair, number)) for pair in pairs for number in self._numbers]
        return [pair.scores[0] if pair.scores else pair.lost[0] for pair in self.judge.pairs(self.question, requests)]

    @property
    def _numbers(self) -> range:
        return range(self.first, self.first + self.labels_each)

    def _seed(self, texts: tuple[str, ...], number: int) -> int:
        return seed_of("limit", self.question.words(*texts), number)

    def _seeds(self, pair: PairTexts, number: int) -> tuple[int, int]:
        first, second = (self._seed(texts, number) for texts in orders(pair))
        return first, second


def own_question(form: Form, text: str, scale: Scale) -> Question[Any]:
    """The user's question in one of its forms."""
    if form == "verdict":
        return Question(SYSTEM_OWN, partial(own_verdict, text), VERDICTS.get)
    if form == "comparison":
        return Question(SYSTEM_OWN, partial(own_comparison, text), WINS.get)
    low, high = scale.low, scale.high
    assert low is not None
    assert high is not None
    return Question(SYSTEM_OWN, partial(own_score, text, low=low, high=high), partial(_number, high), "number")


def _number(high: float, verdict: str) -> float | None:
    """It may lie outside of the scale, which has a reason of its own."""
    numbers = numbers_in(verdict, high)
    return numbers[0] if len(numbers) == 1 else None


def judge_source(opening: Opening) -> Source:
    """A judge with a question in a file (or as text). Raises UserError where the model or the question is missing."""
    where, scale, labels_each = opening.where, opening.scale, opening.labels_each or 1
    form: Form = "score" if opening.kind == "mean" else "comparison" if opening.comparing else "verdict"
    options = {**opening.judge, **opening.options}
    question = opening.what or options.get("question")
    if not isinstance(question, str) or not question.strip():
        raise UserError(f"{where}: say what the judge is asked: {{judge: {{question: brand.md, model: NAME}}}}")
    text = question_text(where, question, opening.folder)
    if form == "score" and (scale.low is None or scale.high is None):
        raise UserError(f"{where}: a judge's numbers need `bounds`, e.g. bounds: [0, 10]")
    endpoint = ChatEndpoint.stated(where, options, opening.environment)
    settings = endpoint.settings
    identity = [form, text, str(settings.temperature), *([json.dumps(settings.fields)] if settings.fields else [])]
    version = f"judge {settings.endpoint} {settings.model} {fingerprint(*identity)}"
    measure = JudgeOfLimit(Judge(endpoint), own_question(form, text, scale), form == "comparison", labels_each)
    own_scale = scale if form == "score" else VERDICT
    halves = measure, replace(measure, first=labels_each)
    return Source(f"judge {settings.model}", version, measure, own_scale, BATCH, halves=halves)


def _mean(opinions: Sequence[float | Lost]) -> float | Unmeasured:
    """Of all opinions; where one is lost, why."""
    numbers = [opinion for opinion in opinions if not isinstance(opinion, Lost)]
    lost = [opinion for opinion in opinions if isinstance(opinion, Lost)]
    return Unmeasured(lost[0].reason) if lost else sum(numbers) / len(numbers)
