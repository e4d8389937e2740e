"""Questions for people as a file of JSON lines, for a queue that belongs to no run.

    {"kind": "safety", "prompt": "How do I ...?", "response": "You ..."}
    {"kind": "compare", "id": "q7", "prompt": [{"role": "user", "content": "..."}], "first": "...", "second": "..."}

A row may also have `risk` and `language`. A question is known by its `id`, or by its texts where it has none.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pddpo_ray.annotation.queue.answer_forms import LANGUAGE
from pddpo_ray.data.checks.problems import Fault, Limits, RowError, shown
from pddpo_ray.data.files.text_files import json_lines
from pddpo_ray.data.formats.dialogue import messages
from pddpo_ray.data.formats.fields import identity, text
from pddpo_ray.errors import UserError
from pddpo_ray.parts.questions import UNKNOWN_RISK, Kind, Question, Turns
from pddpo_ray.text.templates import for_reading

ANSWERS: Mapping[str, tuple[str, ...]] = {"safety": ("response",), "compare": ("first", "second")}
"""Fields that hold a row's answers, by its kind."""
KINDS: Mapping[str, Kind] = {"safety": "safety", "compare": "pair"}
"""The question that a row asks, by its kind."""
COMMON = ("kind", "id", "prompt", "risk", "language")
ID_MAX = 200
TEXT_MAX = 100_000
"""Characters of one text, as in the API."""


@dataclass(frozen=True)
class AskedRow:
    """A question, and its file and line."""

    question: Question
    where: str


def read_questions(file: Path) -> list[AskedRow]:
    """The questions of a file, in order. Raises UserError with file and line for the first row that is none, and for
    a question that comes twice."""
    if not file.is_file():
        raise UserError(f"{file}: there is no such file; give one with a JSON object a line")
    by_item: dict[str, AskedRow] = {}
    with file.open("rb") as lines:
        for row in json_lines(lines, Limits()):
            where = f"{file.name} line {row.line}"
            if isinstance(row, Fault):
                raise UserError(f"{where}: {row.reason}")
            try:
                question = _question(row.value)
            except RowError as error:
                raise UserError(f"{where}: {error}") from error
            if (earlier := by_item.get(question.item)) is not None:
                subject = f"id {question.item}" if row.value.get("id") is not None else "question"
                raise UserError(f"{where}: {earlier.where} has the same {subject}; give each an `id` of its own")
            by_item[question.item] = AskedRow(question, where)
    if not by_item:
        raise UserError(f"{file} holds no questions; write one JSON object a line")
    return list(by_item.values())


def _question(row: Mapping[str, Any]) -> Question:
    kind = row.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise RowError(
            "wrong-kind",
            f"`kind` is {shown(kind)}; it must be safety (with prompt and response) or compare"
            " (with prompt, first and second)",
        )
    if unknown := sorted(set(row) - {*COMMON, *ANSWERS[kind]}):
        names = ", ".join((*COMMON, *ANSWERS[kind]))
        raise RowError("unknown-field", f"field `{unknown[0]}` is unknown; a {kind} row has {names}")
    prompt, turns = _prompt(row)
    answers = [text(row, name) for name in ANSWERS[kind]]
    if longest := next((value for value in (prompt, *answers) if len(value) > TEXT_MAX), None):
        raise RowError("too-long", f"a text has {len(longest):,} characters; at most {TEXT_MAX:,} can be shown")
    id_ = identity(row)
    item = _digest([kind, prompt, *answers]) if id_ is None else id_
    if not item.strip() or len(item) > ID_MAX:
        raise RowError("wrong-id", f"`id` has {len(item)} characters; it must have 1 to {ID_MAX}, and not spaces alone")
    second = answers[1] if len(answers) > 1 else None
    return Question(
        KINDS[kind], item, prompt, answers[0], second, risk=_risk(row), language=_language(row), turns=turns
    )


def _prompt(row: Mapping[str, Any]) -> tuple[str, Turns]:
    """The prompt as stored text, and its turns where it is a conversation."""
    if not isinstance(row.get("prompt"), list):
        return text(row, "prompt"), ()
    dialogue = messages(row["prompt"], "prompt")
    return for_reading(dialogue), tuple((turn.role, turn.content) for turn in dialogue) if len(dialogue) > 1 else ()


def _digest(content: list[str]) -> str:
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()[:32]


def _risk(row: Mapping[str, Any]) -> float:
    value = row.get("risk")
    if value is None:
        return UNKNOWN_RISK
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise RowError("wrong-risk", f"`risk` is {shown(value)}; it is the chance of harm, a number from 0 to 1")
    return float(value)


def _language(row: Mapping[str, Any]) -> str | None:
    value = row.get("language")
    if value is not None and not (isinstance(value, str) and re.fullmatch(LANGUAGE, value)):
        raise RowError("wrong-language", f"`language` is {shown(value)}; it is a code such as de")
    return value
