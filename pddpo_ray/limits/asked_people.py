"""What people are asked about an answer in a run: the question of a limit that they measure, or audit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pddpo_ray.errors import UserError
from pddpo_ray.limits.local_sources import question_text
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.limits.sources import fingerprint

OF_SAFETY = ("people", "world")
"""Sources whose yes means unsafe where no question says something else."""


@dataclass(frozen=True)
class PeoplesQuestion:
    """One question about one answer."""

    text: str | None
    """In Markdown, its first line the heading; None: whether the answer is safe, and a yes is "unsafe"."""
    labels_each: int
    """How many different people answer it."""

    @property
    def version(self) -> str:
        """What decides what the labels mean, and how many there are."""
        return f"people, {self.labels_each} each, {fingerprint(self.text or 'safe or unsafe')}"


def peoples_question(stated: StatedLimit) -> PeoplesQuestion | None:
    """What people are asked for a limit of a run; None: nothing. Raises UserError for a question that cannot be had.

    An audit asks one person about an answer: what its own `question` says, or what the judge is asked.
    """
    if stated.source.kind == "people":
        own, each = stated.source.options.get("question"), stated.asking.labels_each or 1
        return PeoplesQuestion(_text(stated, "people", own), each)
    if stated.audited is None:
        return None
    question = stated.audit_question
    if question is None and stated.source.kind == "judge":
        question = stated.source.what or stated.source.options.get("question")
    if question is None and stated.source.kind not in OF_SAFETY:
        raise UserError(
            f"{stated.where}.audited_by: say what people are asked about an answer, as {stated.source} cannot: "
            "{people: 40 a round, question: FILE.md}"
        )
    return PeoplesQuestion(_text(stated, "audited_by", question), 1)


def _text(stated: StatedLimit, key: str, question: str | None) -> str | None:
    if question is None:
        return None
    text = question_text(f"{stated.where}.{key}.question", question, Path.cwd())
    if not text.strip():
        raise UserError(f"{stated.where}.{key}.question: {question} is empty; write what people are asked")
    return text
