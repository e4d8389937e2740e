"""An LLM as judge: pairs scored in both orders, single answers called safe or unsafe, and labels made of that.

    judge = Judge(ChatEndpoint(EndpointConfig(model="my-judge")))
    judged = judge.compare([("how do i light the stove ?", "use a match .", "no .")], "helpfulness", seed=0)
    judged[0].scores        # (mean score of the first, of the second), or None

A judge may prefer the first or the second answer as such, and its reply cannot always be read. So every pair is asked
twice, in both orders; a pair of which either reply lacks readable scores is counted and excluded, never scored 0 to 0.
What the endpoint refuses to look at (a filter, a length) is not asked again: its label is MISSING, which counts as the
worst; what cannot be read is FAILED, and may be asked again.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pddpo_ray.records import HARM, LabelledPair, Pair, Response, SafetyLabels, Verdict
from pddpo_ray.scoring.judges.endpoint import ChatEndpoint, Lost
from pddpo_ray.scoring.judges.judge_prompts import SYSTEM, harmlessness_question, helpfulness_question, safety_question
from pddpo_ray.scoring.judges.replies import verdicts

logger = logging.getLogger(__name__)

Axis = Literal["harmlessness", "helpfulness"]
SCALE: dict[Axis, tuple[float, float]] = {"harmlessness": (0.0, 10.0), "helpfulness": (1.0, 10.0)}
QUESTION: dict[Axis, Callable[[str, str, str], str]] = {
    "harmlessness": harmlessness_question,
    "helpfulness": helpfulness_question,
}
NUMBER = r"\s*(-?\d+(?:\.\d+)?)(?:\s*/\s*10)?\s*"
SCORES = re.compile(rf"{NUMBER},{NUMBER}")
CALLED = {"safe": Verdict.SAFE, "unsafe": Verdict.UNSAFE}


@dataclass(frozen=True)
class JudgedPair:
    """Scores (first answer, second answer) from each order of asking; None where the reply could not be read."""

    as_given: tuple[float, float] | None
    changed_over: tuple[float, float] | None
    """Already turned back: the first number is the first answer's here too."""
    lost: Lost | None = None
    """Why there is none, where there is none."""

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


@dataclass(frozen=True)
class Opinion:
    """What a judge calls one answer: SAFE, UNSAFE, or FAILED and why."""

    verdict: Verdict
    lost: Lost | None = None


class Judge:
    """Questions on top of an endpoint. `judged` counts them, `reasons` why there was no verdict."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self.endpoint = endpoint
        self.judged = 0
        self.reasons: Counter[str] = Counter()

    @property
    def unreadable(self) -> int:
        """Questions without a verdict."""
        return self.reasons.total()

    def compare(self, pairs: Sequence[tuple[str, str, str]], axis: Axis, seed: int) -> list[JudgedPair]:
        """Scores of (prompt, first, second) on one axis, each pair in both orders. -> in order"""
        ask = QUESTION[axis]
        questions = []
        for prompt, first, second in pairs:
            own = _seed(seed, axis, prompt, first, second)
            questions += [(SYSTEM, ask(prompt, first, second), own), (SYSTEM, ask(prompt, second, first), own + 1)]
        read: list[tuple[float, float] | Lost] = []
        for reply in self.endpoint.ask(questions):
            read.append(reply if isinstance(reply, Lost) else parse_scores(reply, axis) or _no_verdict(reply))
        self._count([reply if isinstance(reply, Lost) else None for reply in read])
        return [_judged(given, over) for given, over in zip(read[::2], read[1::2], strict=True)]

    def safety(self, texts: Sequence[tuple[str, str]], labels_each: int, seed: int) -> list[tuple[Verdict, ...]]:
        """`labels_each` labels of each (prompt, answer), one question each; FAILED where there is no verdict."""
        return [tuple(one.verdict for one in own) for own in self.opinions(texts, labels_each, seed)]

    def opinions(self, texts: Sequence[tuple[str, str]], labels_each: int, seed: int) -> list[tuple[Opinion, ...]]:
        """The same with the reasons."""
        questions = [
            (SYSTEM, safety_question(prompt, answer), _seed(seed, "safety", prompt, answer) + index)
            for prompt, answer in texts
            for index in range(labels_each)
        ]
        opinions = [_opinion(reply) for reply in self.endpoint.ask(questions)]
        self._count([one.lost for one in opinions])
        return [tuple(opinions[start : start + labels_each]) for start in range(0, len(opinions), labels_each)]

    def _count(self, lost: Sequence[Lost | None]) -> None:
        self.judged += len(lost)
        reasons = [one for one in lost if one is not None]
        self.reasons.update(one.kind for one in reasons)
        if reasons:
            kinds = ", ".join(f"{kind}: {n}" for kind, n in Counter(one.kind for one in reasons).most_common())
            logger.warning(
                "no verdict about %d of %d questions to the judge (%s); the first one %s",
                len(reasons), len(lost), kinds, reasons[0].reason,
            )  # fmt: skip


class JudgeLabeller:
    """A judge as a `Labeller`. The more harmful answer is the one with the lower score for harmlessness.

    What the endpoint refuses to look at is MISSING, and so not asked again. `record` is handed the counts of the
    present round, which `round_` names: `judge/questions`, `judge/unreadable`, and of these `judge/KIND` by their kind.
    """

    def __init__(
        self, judge: Judge, round_: Callable[[], int], record: Callable[[dict[str, float]], None] = lambda counts: None
    ) -> None:
        self._judge, self._round, self._record = judge, round_, record
        self._counted: dict[int, Counter[str]] = {}

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        with _Counting(self):
            opinions = self._judge.opinions([(item.prompt.text, item.text) for item in items], labels_each, seed)
        labels = [tuple(_label(one.verdict, one.lost) for one in own) for own in opinions]
        reasons = [_reason(one.lost for one in own) for own in opinions]
        return [SafetyLabels(item, own, reason=why) for item, own, why in zip(items, labels, reasons, strict=True)]

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        texts = [(pair.prompt.text, pair.first.text, pair.second.text) for pair in pairs]
        with _Counting(self):
            helpful = self._judge.compare(texts, "helpfulness", seed)
            harmless = self._judge.compare(texts, "harmlessness", seed)
        return [
            LabelledPair(
                pair,
                _label(more_helpful.winner, more_helpful.lost),
                {HARM: turned(_label(more_harmless.winner, more_harmless.lost))},
                reason=_reason((more_helpful.lost, more_harmless.lost)),
            )
            for pair, more_helpful, more_harmless in zip(pairs, helpful, harmless, strict=True)
        ]

    def count(self, questions: int, reasons: Counter[str]) -> None:
        """Adds to the present round's counts and records them."""
        total = self._counted.setdefault(self._round(), Counter())
        total.update({"questions": questions, "unreadable": reasons.total()})
        total.update({kind.replace(" ", "_"): number for kind, number in reasons.items()})
        self._record({f"judge/{name}": float(number) for name, number in total.items()})

    @property
    def totals(self) -> tuple[int, int]:
        """(questions, questions without a verdict) of the judge since the start."""
        return self._judge.judged, self._judge.unreadable

    @property
    def reasons(self) -> Counter[str]:
        """Why questions had no verdict, since the start."""
        return self._judge.reasons


class _Counting:
    """Counts what one call asked, also when it ends in an error."""

    def __init__(self, labeller: JudgeLabeller) -> None:
        self._labeller, self._asked, self._reasons = labeller, labeller.totals[0], Counter(labeller.reasons)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        asked = self._labeller.totals[0] - self._asked
        self._labeller.count(asked, self._labeller.reasons - self._reasons)


def _opinion(reply: str | Lost) -> Opinion:
    if isinstance(reply, Lost):
        return Opinion(Verdict.FAILED, reply)
    verdict = parse_safety(reply)
    return Opinion(verdict, _no_verdict(reply) if verdict is Verdict.FAILED else None)


def _judged(given: tuple[float, float] | Lost, over: tuple[float, float] | Lost) -> JudgedPair:
    lost = [one for one in (given, over) if isinstance(one, Lost)]
    return JudgedPair(
        None if isinstance(given, Lost) else given,
        None if isinstance(over, Lost) else (over[1], over[0]),
        max(lost, key=lambda one: one.final, default=None),
    )


def _no_verdict(reply: str) -> Lost:
    return Lost(f"gave no verdict: {' '.join(reply.split())[-80:]!r}")


def _label(verdict: Verdict, lost: Lost | None) -> Verdict:
    return Verdict.MISSING if lost is not None and lost.final else verdict


def _reason(lost: Iterable[Lost | None]) -> str:
    """The first reason."""
    return next((one.reason for one in lost if one is not None), "")


def parse_scores(reply: str, axis: Axis) -> tuple[float, float] | None:
    """The last `[[a, b]]` of a reply, if both numbers lie on the axis' scale."""
    matches = [match for said in verdicts(reply) if (match := SCORES.fullmatch(said)) is not None]
    if not matches:
        return None
    first, second = (float(number) for number in matches[-1].groups())
    low, high = SCALE[axis]
    return (first, second) if low <= first <= high and low <= second <= high else None


def parse_safety(reply: str) -> Verdict:
    """The last `[[safe]]` or `[[unsafe]]` of a reply; FAILED where there is none."""
    called = [CALLED[said.lower()] for said in verdicts(reply) if said.lower() in CALLED]
    return called[-1] if called else Verdict.FAILED


def turned(verdict: Verdict) -> Verdict:
    """The other side of a comparison."""
    return {Verdict.FIRST: Verdict.SECOND, Verdict.SECOND: Verdict.FIRST}.get(verdict, verdict)


def _seed(seed: int, *parts: str) -> int:
    digest = hashlib.sha256("\n".join([str(seed), *parts]).encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:4], "little") >> 1
