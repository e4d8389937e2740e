"""A file of control questions before it is imported: what an import would do with each line, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError

from deploy.annotation.routes_trainer import question_of
from deploy.annotation.schemas import GoldQuestion
from pddpo_ray.annotation.queue.controls import Controls, Fate
from pddpo_ray.annotation.queue.queue_rules import QueueError
from pddpo_ray.parts.questions import Question

SHOWN = 200
"""Characters of a prompt that a preview shows."""


@dataclass(frozen=True)
class Line:
    """A line of the file, counted from 1, and what an import does with it."""

    line: int
    fate: Fate
    why: str
    prompt: str = ""
    gold: dict[str, str] | None = None


def gold_question(body: GoldQuestion) -> Question:
    """Raises QueueError for a pair with one answer, or a safety question with two."""
    return question_of(body, {str(name): value for name, value in body.gold.items()})


def preview(lines: Sequence[str], controls: Controls) -> dict[str, Any]:
    """Every line that is not empty, with counts of those to be added, there already, refused. Writes nothing."""
    entries = list(_read(lines))
    fates = iter(controls.fates([entry for _, entry in entries if isinstance(entry, Question)]))
    rows = []
    for number, entry in entries:
        if isinstance(entry, Question):
            fate, reason = next(fates)
            rows.append(Line(number, fate, reason, entry.prompt[:SHOWN], entry.gold))
        else:
            rows.append(Line(number, Fate.REFUSED, entry))
    counts = {fate.value: sum(row.fate is fate for row in rows) for fate in Fate}
    return {"rows": [asdict(row) for row in rows], **counts}


def _read(lines: Sequence[str]) -> Iterator[tuple[int, Question | str]]:
    """Number of each line that is not empty, with its question or the reason why it has none."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, _question(line)


def _question(line: str) -> Question | str:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return "it is no JSON"
    try:
        return gold_question(GoldQuestion.model_validate(content))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        return f"{field}: {first['msg']}" if field else "it is no JSON object"
    except QueueError as error:
        return str(error)
