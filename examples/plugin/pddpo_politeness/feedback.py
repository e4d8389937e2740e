"""Who labels: brevity is polite, `feedback={kind: brevity, words: 12}`."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from pddpo_ray.config.sections.feedback import FeedbackCommon, FeedbackKind, InstalledFeedback
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.records import HARM, LabelledPair, Pair, Response, SafetyLabels, Verdict
from pddpo_ray.scorers.labellers import Labelling


class Brevity(FeedbackCommon):
    """How long an answer may be."""

    words: int = Field(12, ge=1)
    """An answer of more words is unsafe."""


class ByLength:
    """Satisfies contracts.Labeller."""

    def __init__(self, words: int) -> None:
        self._words = words

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        labels = [Verdict.UNSAFE if _length(item) > self._words else Verdict.SAFE for item in items]
        return [SafetyLabels(item, (label,) * labels_each) for item, label in zip(items, labels, strict=True)]

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        """The shorter answer is the more helpful one, the longer one costs more."""
        return [LabelledPair(pair, _longer(pair.second, pair.first), {HARM: _longer(pair.first, pair.second)})
                for pair in pairs]  # fmt: skip


def _length(answer: Response) -> int:
    return len(answer.text.split())


def _longer(first: Response, second: Response) -> Verdict:
    if _length(first) == _length(second):
        return Verdict.ABSTAIN
    return Verdict.FIRST if _length(first) > _length(second) else Verdict.SECOND


def brevity(run: Labelling) -> FeedbackController:
    """The part of a run that asks."""
    assert isinstance(run.config.feedback, InstalledFeedback)
    settings = run.config.feedback.settings
    assert isinstance(settings, Brevity)
    return run.part(ByLength(settings.words))


BREVITY = FeedbackKind("pddpo_politeness.feedback:brevity", Brevity, "their length")
