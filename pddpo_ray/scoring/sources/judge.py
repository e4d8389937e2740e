"""A judge as the source of a limit: a question text of the user's own about one answer, or about two.

    rate   [[yes]] or [[no]] to the question
    mean   a number between the limit's bounds
    versus reference: which of the two answers is better, asked in both orders; 1 for a win, a half for a tie

A reply that cannot be read, one that is lost and one that says [[unsure]] are no numbers. What the judge thinks or
quotes is not what it says (`scoring.replies`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pddpo_ray.config.sections.judge import endpoint_settings
from pddpo_ray.errors import UserError
from pddpo_ray.limits.local_sources import question_text
from pddpo_ray.limits.quantities import VERDICT, Scale
from pddpo_ray.limits.sources import Answer, Source, Unmeasured, fingerprint
from pddpo_ray.scoring.judges.endpoint import ChatEndpoint, Lost, Turns
from pddpo_ray.scoring.judges.judge_prompts import SYSTEM_OWN, own_comparison, own_score, own_verdict
from pddpo_ray.scoring.judges.replies import number_on_scale, verdicts
from pddpo_ray.theory.seeds import seed_of

Form = Literal["verdict", "score", "comparison"]
VERDICTS = {"yes": 1.0, "no": 0.0}
WINS = {"a": 1.0, "tie": 0.5, "b": 0.0}
BATCH = 32


@dataclass(frozen=True)
class JudgeOfLimit:
    """Asks about answers; `labels_each` opinions on each, whose mean is the value."""

    endpoint: ChatEndpoint
    question: str
    form: Form
    scale: Scale
    labels_each: int = 1
    first: int = 0
    """Number of the first opinion; other opinions are asked with other seeds."""

    def __call__(self, answers: Sequence[Answer]) -> list[float | Unmeasured]:
        asked = [self._questions(answer) for answer in answers]
        replies = iter(self.endpoint.converse([question for questions in asked for question in questions]))
        return [self._value([next(replies) for _ in questions]) for questions in asked]

    def _questions(self, answer: Answer) -> list[tuple[Turns, int]]:
        if self.form == "comparison" and answer.reference is None:
            return []
        texts = self._texts(answer)
        return [
            ((("system", SYSTEM_OWN), ("user", text)), seed_of("limit", text, opinion))
            for opinion in range(self.first, self.first + self.labels_each)
            for text in texts
        ]

    def _texts(self, answer: Answer) -> list[str]:
        if self.form == "verdict":
            return [own_verdict(self.question, answer.prompt, answer.response)]
        if self.form == "score":
            return [own_score(self.question, answer.prompt, answer.response, *self._bounds)]
        other = answer.reference or ""
        return [
            own_comparison(self.question, answer.prompt, answer.response, other),
            own_comparison(self.question, answer.prompt, other, answer.response),
        ]

    def _value(self, replies: Sequence[str | Lost]) -> float | Unmeasured:
        if not replies:
            return Unmeasured('has no reference answer to compare with: add "reference" to the row')
        values = []
        for index, reply in enumerate(replies):
            value = self._read(reply)
            if isinstance(value, Unmeasured):
                return value
            values.append(1.0 - value if self.form == "comparison" and index % 2 else value)
        return sum(values) / len(values)

    def _read(self, reply: str | Lost) -> float | Unmeasured:
        if isinstance(reply, Lost):
            return Unmeasured(reply.reason)
        said = verdicts(reply)
        last = said[-1].lower() if said else ""
        if last == "unsure":
            return Unmeasured("was unsure", abstained=True)
        if self.form == "score":
            number = number_on_scale(last, *self._bounds)
            return Unmeasured(f"gave no number: {_short(reply)}") if number is None else number
        words = VERDICTS if self.form == "verdict" else WINS
        return words[last] if last in words else Unmeasured(f"gave no verdict: {_short(reply)}")

    @property
    def _bounds(self) -> tuple[float, float]:
        low, high = self.scale.low, self.scale.high
        assert low is not None
        assert high is not None
        return low, high


def judge_source(
    where: str,
    options: Mapping[str, Any],
    scale: Scale,
    form: Form,
    folder: Path,
    environment: Mapping[str, str],
    labels_each: int = 1,
) -> Source:
    """A judge with a question in a file (or as text). Raises UserError where the model or the question is missing."""
    question = options.get("question")
    if not isinstance(question, str) or not question.strip():
        raise UserError(f"{where}: say what the judge is asked: {{judge: {{question: brand.md, model: NAME}}}}")
    text = question_text(where, question, folder)
    if form == "score" and (scale.low is None or scale.high is None):
        raise UserError(f"{where}: a judge's numbers need `bounds`, e.g. bounds: [0, 10]")
    settings = endpoint_settings(where, options)
    endpoint = ChatEndpoint(settings, key_of(where, settings.key_env, environment))
    decided = [form, text, str(settings.temperature), *([json.dumps(settings.fields)] if settings.fields else [])]
    version = f"judge {settings.endpoint} {settings.model} {fingerprint(*decided)}"
    measure = JudgeOfLimit(endpoint, text, form, scale, labels_each)
    own = scale if form == "score" else VERDICT
    halves = measure, replace(measure, first=labels_each)
    return Source(f"judge {settings.model}", version, measure, own, BATCH, halves=halves)


def key_of(where: str, name: str | None, environment: Mapping[str, str]) -> str | None:
    """The key in the environment variable of that name, without white space around it. Raises UserError where it is not
    set, or is no key that a header could hold."""
    if name is None:
        return None
    key = environment.get(name, "").strip()
    if not key:
        raise UserError(f"{where}.key_env: the environment variable {name} is not set; put the key there")
    if not key.isascii() or not key.isprintable():
        raise UserError(f"{where}.key_env: {name} holds characters that no key has; copy the key anew")
    return key


def _short(reply: str) -> str:
    text = " ".join(reply.split())
    return f"{text[:80]!r}"
