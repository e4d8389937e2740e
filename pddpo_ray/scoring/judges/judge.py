"""A language model as judge: what an answer is worth, and which of two is better, by any question's words.

    judge = Judge(ChatEndpoint(EndpointConfig(model="my-judge")))
    judged = judge.compare([("how do i light the stove ?", "use a match .", "no .")], "helpfulness", seed=0)
    judged[0].scores        # (mean score of the first, of the second), or None

A judge may prefer the first or the second answer as such, and its reply cannot always be read. So every pair is asked
twice, in both orders; a pair of which either reply lacks readable scores is counted and excluded, never scored 0 to 0.
What the endpoint refuses to look at (a filter, a length) is not asked again: its label is MISSING, which counts as the
worst; what cannot be read is FAILED, and may be asked again. Limits put questions of the user's own to the same judge
(`scoring.sources.judge`).
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, TypeVar

from pddpo_ray.records import HARM, LabelledPair, Pair, Response, SafetyLabels, Verdict
from pddpo_ray.scoring.judges.endpoint import ChatEndpoint, Lost
from pddpo_ray.scoring.judges.judge_prompts import SYSTEM, harmlessness_question, helpfulness_question, safety_question
from pddpo_ray.scoring.judges.replies import numbers_in, verdicts

logger = logging.getLogger(__name__)

Axis = Literal["harmlessness", "helpfulness"]
Both = tuple[float, float]
"""A number for the first answer and one for the second."""
PairTexts = tuple[str, str, str]
"""A prompt and two answers."""
Said = TypeVar("Said")
SCALE: dict[Axis, Both] = {"harmlessness": (0.0, 10.0), "helpfulness": (1.0, 10.0)}
CALLED = {"safe": Verdict.SAFE, "unsafe": Verdict.UNSAFE}


@dataclass(frozen=True)
class Question(Generic[Said]):
    """What a judge is asked about an answer, or about two, and what its verdict stands for."""

    system: str
    words: Callable[..., str]
    """From (prompt, answer) or (prompt, first, second) to the text."""
    value_of: Callable[[str], Said | None]
    """What a verdict, in lower case, stands for; None: nothing."""
    wanted: str = "verdict"

    def read(self, reply: str) -> Said | Lost:
        """What the last verdict of a reply stands for. No earlier one takes its place: it was taken back, or was an
        example."""
        last = (verdicts(reply) or [""])[-1].lower()
        if last == "unsure":
            return Lost("was unsure")
        value = self.value_of(last)
        return Lost(f"gave no {self.wanted}: {' '.join(reply.split())[-80:]!r}") if value is None else value


@dataclass(frozen=True)
class JudgedPair:
    """Scores (first answer, second answer) from each order of asking; None where the reply could not be read."""

    as_given: Both | None
    changed_over: Both | None
    """Already turned back: the first number is the first answer's here too."""
    lost: tuple[Lost, ...] = ()
    """Why a score is missing."""

    @property
    def scores(self) -> Both | None:
        """Mean over both orders; None unless both were read."""
        if self.as_given is None or self.changed_over is None:
            return None
        first, second = ((score + other) / 2 for score, other in zip(self.as_given, self.changed_over, strict=True))
        return first, second

    @property
    def winner(self) -> Verdict:
        """FIRST or SECOND scored higher; ABSTAIN when they are level, FAILED when the pair is excluded."""
        if self.scores is None:
            return Verdict.FAILED
        first, second = self.scores
        return Verdict.ABSTAIN if first == second else Verdict.FIRST if first > second else Verdict.SECOND


class Judge:
    """Asks a model behind an endpoint about single answers (`values`) and about two (`pairs`), by any caller's
    `Question`. `compare` and `opinions` are the questions of `feedback`: `judged` counts them, and `reasons` counts why
    some had no verdict."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self.endpoint = endpoint
        self.judged = 0
        self.reasons: Counter[str] = Counter()

    @property
    def unreadable(self) -> int:
        """Questions without a verdict."""
        return self.reasons.total()

    def values(self, question: Question[Said], items: Sequence[tuple[tuple[str, ...], int]]) -> list[Said | Lost]:
        """Verdicts on each (prompt, answer), which comes with its seed. -> in order"""
        replies = self.endpoint.ask([(question.system, question.words(*texts), seed) for texts, seed in items])
        return [reply if isinstance(reply, Lost) else question.read(reply) for reply in replies]

    def pairs(self, question: Question[Both], items: Sequence[tuple[PairTexts, tuple[int, int]]]) -> list[JudgedPair]:
        """Numbers of each (prompt, first, second), which comes with a seed for either order. -> in order"""
        numbers = self.values(
            question, [item for texts, seeds in items for item in zip(orders(texts), seeds, strict=True)]
        )
        return [_judged_pair(scores, swapped) for scores, swapped in zip(numbers[::2], numbers[1::2], strict=True)]

    def compare(self, pairs: Sequence[PairTexts], axis: Axis, seed: int) -> list[JudgedPair]:
        """Scores of (prompt, first, second) on one axis, each pair in both orders. -> in order"""
        seeds = [_seed(seed, axis, *texts) for texts in pairs]
        requests = [(texts, (pair_seed, pair_seed + 1)) for texts, pair_seed in zip(pairs, seeds, strict=True)]
        judged = self.pairs(BY_AXIS[axis], requests)
        self._add_counts(2 * len(judged), [loss for pair in judged for loss in pair.lost])
        return judged

    def opinions(
        self, texts: Sequence[tuple[str, str]], labels_each: int, seed: int
    ) -> list[tuple[Verdict | Lost, ...]]:
        """`labels_each` labels of each (prompt, answer), SAFE or UNSAFE, one question each; Lost: why there is none."""
        requests = [(pair, _seed(seed, "safety", *pair) + index) for pair in texts for index in range(labels_each)]
        labels = self.values(SAFETY, requests)
        self._add_counts(len(labels), [label for label in labels if isinstance(label, Lost)])
        return [tuple(labels[start : start + labels_each]) for start in range(0, len(labels), labels_each)]

    def _add_counts(self, questions: int, lost: Sequence[Lost]) -> None:
        self.judged += questions
        kinds = Counter(loss.kind for loss in lost)
        self.reasons.update(kinds)
        if lost:
            logger.warning(
                "no verdict about %d of %d questions to the judge (%s); the first one %s",
                len(lost), questions, ", ".join(f"{kind}: {n}" for kind, n in kinds.most_common()), lost[0].reason,
            )  # fmt: skip


class JudgeLabeller:
    """A judge as a `Labeller`. The more harmful answer is the one with the lower score for harmlessness.

    What the endpoint refuses to look at is MISSING, and so not asked again. `record` receives the counts of the
    present round, which `round_` names: `judge/questions`, `judge/unreadable`, and of these `judge/KIND` by their kind.
    """

    def __init__(
        self, judge: Judge, round_: Callable[[], int], record: Callable[[dict[str, float]], None] = lambda counts: None
    ) -> None:
        self.judge, self._round, self._record = judge, round_, record
        self._counts_by_round: dict[int, Counter[str]] = {}

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        with self._count_questions():
            opinions = self.judge.opinions([(item.prompt.text, item.text) for item in items], labels_each, seed)
        labels = [tuple(map(_label, opinion)) for opinion in opinions]
        reasons = map(_reason, opinions)
        return [SafetyLabels(item, votes, reason=why) for item, votes, why in zip(items, labels, reasons, strict=True)]

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        texts = [(pair.prompt.text, pair.first.text, pair.second.text) for pair in pairs]
        with self._count_questions():
            helpful = self.judge.compare(texts, "helpfulness", seed)
            harmless = self.judge.compare(texts, "harmlessness", seed)
        return [
            LabelledPair(
                pair,
                _label_of_pair(more_helpful),
                {HARM: turned(_label_of_pair(more_harmless))},
                reason=_reason((_decisive_loss(more_helpful), _decisive_loss(more_harmless))),
            )
            for pair, more_helpful, more_harmless in zip(pairs, helpful, harmless, strict=True)
        ]

    @contextmanager
    def _count_questions(self) -> Iterator[None]:
        """Adds what is asked within to the present round's counts and records them, also when it ends in an error."""
        count, reasons = self.judge.judged, self.judge.reasons.copy()
        try:
            yield
        finally:
            new = self.judge.reasons - reasons
            total = self._counts_by_round.setdefault(self._round(), Counter())
            total.update({"questions": self.judge.judged - count, "unreadable": new.total()})
            total.update({kind.replace(" ", "_"): number for kind, number in new.items()})
            self._record({f"judge/{name}": float(number) for name, number in total.items()})


def orders(texts: PairTexts) -> tuple[PairTexts, PairTexts]:
    """(prompt, first, second) as given and with the answers changed over."""
    prompt, first, second = texts
    return texts, (prompt, second, first)


def _judged_pair(scores: Both | Lost, swapped: Both | Lost) -> JudgedPair:
    return JudgedPair(
        None if isinstance(scores, Lost) else scores,
        None if isinstance(swapped, Lost) else (swapped[1], swapped[0]),
        tuple(loss for loss in (scores, swapped) if isinstance(loss, Lost)),
    )


def _decisive_loss(pair: JudgedPair) -> Lost | None:
    """Why a pair is excluded; a refusal of the pair itself comes before what may be asked again."""
    return max(pair.lost, key=lambda loss: loss.final, default=None)


def _label_of_pair(pair: JudgedPair) -> Verdict:
    return _label(_decisive_loss(pair) or pair.winner)


def _label(verdict: Verdict | Lost) -> Verdict:
    if isinstance(verdict, Lost):
        return Verdict.MISSING if verdict.final else Verdict.FAILED
    return verdict


def _reason(results: Iterable[Verdict | Lost | None]) -> str:
    """The first reason."""
    return next((result.reason for result in results if isinstance(result, Lost)), "")


def _scores(axis: Axis, verdict: str) -> Both | None:
    """The numbers of `a, b`, if both lie on the axis' scale."""
    low, high = SCALE[axis]
    match numbers_in(verdict, high):
        case (first, second) if low <= min(first, second) and max(first, second) <= high:
            return first, second
    return None


BY_AXIS: dict[Axis, Question[Both]] = {
    "harmlessness": Question(SYSTEM, harmlessness_question, partial(_scores, "harmlessness")),
    "helpfulness": Question(SYSTEM, helpfulness_question, partial(_scores, "helpfulness")),
}
SAFETY = Question[Verdict](SYSTEM, safety_question, CALLED.get)


def turned(verdict: Verdict) -> Verdict:
    """The other side of a comparison."""
    return {Verdict.FIRST: Verdict.SECOND, Verdict.SECOND: Verdict.FIRST}.get(verdict, verdict)


def _seed(seed: int, *parts: str) -> int:
    digest = hashlib.sha256("\n".join([str(seed), *parts]).encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:4], "little") >> 1
