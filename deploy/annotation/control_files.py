"""A file of control questions before it is imported: what would become of every line, and why."""

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
"""Characters of a prompt that a preview has."""


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
    """Every line that is not empty, and how many would be added, are there, and are refused. Writes nothing."""
    read = list(_read(lines))
    fates = iter(controls.fates([one for _, one in read if isinstance(one, Question)]))
    rows = []
    for number, one in read:
        if isinstance(one, Question):
            fate, why = next(fates)
            rows.append(Line(number, fate, why, one.prompt[:SHOWN], one.gold))
        else:
            rows.append(Line(number, Fate.REFUSED, one))
    counts = {fate.value: sum(row.fate is fate for row in rows) for fate in Fate}
    return {"rows": [asdict(row) for row in rows], **counts}


def _read(lines: Sequence[str]) -> Iterator[tuple[int, Question | str]]:
    """Number of every line that is not empty, with its question, or why it is none."""
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
        named = ".".join(str(part) for part in first["loc"])
        return f"{named}: {first['msg']}" if named else "it is no JSON object"
    except QueueError as error:
        return str(error)
