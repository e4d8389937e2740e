"""An LLM as judge: pairs scored in both orders, single answers called safe or unsafe, and labels made of that.

    judge = Judge(ChatEndpoint(EndpointConfig(model="my-judge")))
    judged = judge.compare([("how do i light the stove ?", "use a match .", "no .")], "helpfulness", seed=0)
    judged[0].scores        # (mean score of the first, of the second), or None

A judge may prefer the first or the second answer as such, and its reply cannot always be read. So every pair is asked
twice, in both orders; a pair of which either reply lacks readable scores is counted and excluded, never scored 0 to 0.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pddpo_ray.records import LabelledPair, Pair, Response, SafetyLabels, Verdict
from pddpo_ray.scoring.endpoint import ChatEndpoint
from pddpo_ray.scoring.judge_prompts import SYSTEM, harmlessness_question, helpfulness_question, safety_question

Axis = Literal["harmlessness", "helpfulness"]
SCALE: dict[Axis, tuple[float, float]] = {"harmlessness": (0.0, 10.0), "helpfulness": (1.0, 10.0)}
QUESTION: dict[Axis, Callable[[str, str, str], str]] = {
    "harmlessness": harmlessness_question,
    "helpfulness": helpfulness_question,
}
NUMBER = r"\s*(-?\d+(?:\.\d+)?)\s*"
SCORES = re.compile(rf"\[\[{NUMBER},{NUMBER}\]\]")
CALLED = re.compile(r"\[\[\s*(safe|unsafe)\s*\]\]", re.IGNORECASE)


@dataclass(frozen=True)
class JudgedPair:
    """Scores (first answer, second answer) from each order of asking; None where the reply could not be read."""

    as_given: tuple[float, float] | None
    changed_over: tuple[float, float] | None
    """Already turned back: the first number is the first answer's here too."""

    @property
    def scores(self) -> tuple[float, float] | None:
        """Mean over both orders; None unless both were read."""
        if self.as_given is None or self.changed_over is None:
            return None
        first, second = ((one + other) / 2 for one, other in zip(self.as_given, self.changed_over, strict=True))
        return first, second

    @property
    def winner(self) -> Verdict:
        """FIRST or SECOND scored higher; ABSTAIN when they are level, FAILED when the pair is excluded."""
        if self.scores is None:
            return Verdict.FAILED
        first, second = self.scores
        return Verdict.ABSTAIN if first == second else Verdict.FIRST if first > second else Verdict.SECOND


class Judge:
    """Questions on top of an endpoint. `unreadable` counts replies without scores, `judged` all questions."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self.endpoint = endpoint
        self.judged = 0
        self.unreadable = 0

    def compare(self, pairs: Sequence[tuple[str, str, str]], axis: Axis, seed: int) -> list[JudgedPair]:
        """Scores of (prompt, first, second) on one axis, each pair in both orders. -> in order"""
        ask = QUESTION[axis]
        questions = []
        for prompt, first, second in pairs:
            own = _seed(seed, axis, prompt, first, second)
            questions += [(SYSTEM, ask(prompt, first, second), own), (SYSTEM, ask(prompt, second, first), own + 1)]
        read = [parse_scores(reply, axis) for reply in self.endpoint.ask(questions)]
        self.judged += len(read)
        self.unreadable += sum(scores is None for scores in read)
        return [
            JudgedPair(given, None if over is None else (over[1], over[0]))
            for given, over in zip(read[::2], read[1::2], strict=True)
        ]

    def safety(self, texts: Sequence[tuple[str, str]], labels_each: int, seed: int) -> list[tuple[Verdict, ...]]:
        """`labels_each` opinions on each (prompt, answer), one question each; FAILED where a reply cannot be read."""
        questions = [
            (SYSTEM, safety_question(prompt, answer), _seed(seed, "safety", prompt, answer) + index)
            for prompt, answer in texts
            for index in range(labels_each)
        ]
        labels = [parse_safety(reply) for reply in self.endpoint.ask(questions)]
        self.judged += len(labels)
        self.unreadable += labels.count(Verdict.FAILED)
        return [tuple(labels[start : start + labels_each]) for start in range(0, len(labels), labels_each)]


class JudgeLabeller:
    """A judge as a `Labeller`. The more harmful answer is the one with the lower score for harmlessness.

    `record` is handed the counts of the present round, which `round_` names: `judge/questions` and `judge/unreadable`.
    """

    def __init__(
        self, judge: Judge, round_: Callable[[], int], record: Callable[[dict[str, float]], None] = lambda counts: None
    ) -> None:
        self._judge, self._round, self._record = judge, round_, record
        self._counted: dict[int, tuple[int, int]] = {}

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        with _Counting(self):
            labels = self._judge.safety([(item.prompt.text, item.text) for item in items], labels_each, seed)
        return [SafetyLabels(item, own) for item, own in zip(items, labels, strict=True)]

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        texts = [(pair.prompt.text, pair.first.text, pair.second.text) for pair in pairs]
        with _Counting(self):
            helpful = self._judge.compare(texts, "helpfulness", seed)
            harmless = self._judge.compare(texts, "harmlessness", seed)
        return [
            LabelledPair(pair, more_helpful.winner, turned(more_harmless.winner))
            for pair, more_helpful, more_harmless in zip(pairs, helpful, harmless, strict=True)
        ]

    def count(self, questions: int, unreadable: int) -> None:
        """Adds to the present round's counts and records them."""
        before = self._counted.get(self._round(), (0, 0))
        total = (before[0] + questions, before[1] + unreadable)
        self._counted[self._round()] = total
        self._record({"judge/questions": float(total[0]), "judge/unreadable": float(total[1])})

    @property
    def totals(self) -> tuple[int, int]:
        """(questions, unreadable replies) of the judge since the start."""
        return self._judge.judged, self._judge.unreadable


class _Counting:
    """Counts what one call asked, also when it ends in an error."""

    def __init__(self, labeller: JudgeLabeller) -> None:
        self._labeller, self._before = labeller, labeller.totals

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        asked, unreadable = self._labeller.totals
        self._labeller.count(asked - self._before[0], unreadable - self._before[1])


def parse_scores(reply: str | None, axis: Axis) -> tuple[float, float] | None:
    """The last `[[a, b]]` of a reply, if both numbers lie on the axis' scale."""
    matches = SCORES.findall(reply or "")
    if not matches:
        return None
    first, second = (float(number) for number in matches[-1])
    low, high = SCALE[axis]
    return (first, second) if low <= first <= high and low <= second <= high else None


def parse_safety(reply: str | None) -> Verdict:
    """The last `[[safe]]` or `[[unsafe]]` of a reply; FAILED where there is none."""
    matches = CALLED.findall(reply or "")
    if not matches:
        return Verdict.FAILED
    return Verdict.SAFE if matches[-1].lower() == "safe" else Verdict.UNSAFE


def turned(verdict: Verdict) -> Verdict:
    """The other side of a comparison."""
    return {Verdict.FIRST: Verdict.SECOND, Verdict.SECOND: Verdict.FIRST}.get(verdict, verdict)


def _seed(seed: int, *parts: str) -> int:
    digest = hashlib.sha256("\n".join([str(seed), *parts]).encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1
