"""The question that people answer in a run for a limit that they measure or audit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pddpo_ray.errors import UserError
from pddpo_ray.limits.local_sources import question_text
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.limits.sources import fingerprint

OF_SAFETY = ("people", "world", "model")
"""Sources whose yes means unsafe where no question says something else."""


@dataclass(frozen=True)
class PeoplesQuestion:
    """One question about one answer."""

    text: str | None
    """In Markdown, its first line the heading; None: whether the answer is safe, and a yes is "unsafe"."""
    labels_each: int
    """How many different people answer it."""

    better: bool = False
    """Whether they are shown the reference's answer too, and say which of the two is better."""
    bounds: tuple[float, float] | None = None
    """Of the number that they give to an answer; None: they say yes or no."""

    @property
    def version(self) -> str:
        """What decides what the labels mean, and how many there are."""
        texts = [self.text or ("which is better" if self.better else "safe or unsafe")]
        if self.bounds is not None:
            texts.append(f"{self.bounds}")
        return f"people, {self.labels_each} each, {fingerprint(*texts)}"


def peoples_question(stated_limit: StatedLimit) -> PeoplesQuestion | None:
    """What people are asked for a limit of a run; None: nothing. Raises UserError for a question that cannot be asked.

    An audit asks its own `question`, else the judge's: one person per answer, for a logit `labels_each` people.
    """
    quantity, each = stated_limit.limit.quantity, stated_limit.people_each
    if stated_limit.source.kind == "people":
        return PeoplesQuestion(
            _text(stated_limit, "people", stated_limit.source.options.get("question")), each, stated_limit.wins
        )
    if stated_limit.audited is None:
        return None
    question = stated_limit.audit_question
    if question is None and stated_limit.source.kind == "judge":
        question = stated_limit.source.what or stated_limit.source.options.get("question")
    if question is None and (stated_limit.source.kind not in OF_SAFETY or quantity.kind == "mean"):
        raise UserError(
            f"{stated_limit.where}.audited_by: say what people are asked about an answer, as {stated_limit.source} "
            "cannot: {people: 40 a round, question: FILE.md}"
        )
    bounds = None
    if quantity.kind == "mean":
        low, high = stated_limit.scale.low, stated_limit.scale.high
        if low is None or high is None:
            raise UserError(f"{stated_limit.where}: people audit a mean within its bounds; state `bounds: [low, high]`")
        bounds = low, high
    return PeoplesQuestion(_text(stated_limit, "audited_by", question), each, stated_limit.wins, bounds)


def _text(limit: StatedLimit, key: str, question: str | None) -> str | None:
    if question is None:
        return None
    text = question_text(f"{limit.where}.{key}.question", question, Path.cwd())
    if not text.strip():
        raise UserError(f"{limit.where}.{key}.question: {question} is empty; write what people are asked")
    return text
