"""`audited_by` of a limit: how many answers people also measure, and which of them first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pddpo_ray.errors import UserError

AUDIT = "audited_by"
"""The key under which people measure a part of what another source measures."""
AUDITED: Mapping[str, int] = {"people": 48, "unsure": 24}
"""Its value where a recipe switches to `feedback.kind: mixed`."""
LEAST_DRAWN = 8
"""Answers drawn evenly at least, beside those of which a source is least sure."""
A_ROUND = re.compile(r"^\s*(\d+)\s*(?:a|per|each)\s+round\s*$")


def read_audit(where: str, audit: Any) -> tuple[int | None, str | None, int]:
    """How many answers people also measure, their question if the limit has one, and how many of those answers are
    the source's least sure ones. Raises UserError."""
    if audit is None:
        return None, None, 0
    keys_known = isinstance(audit, dict) and set(audit) <= {"people", "question", "unsure"}
    count, question = (audit.get("people"), audit.get("question")) if keys_known else (None, None)
    if isinstance(count, str) and (match := A_ROUND.match(count)):
        count = int(match[1])
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise UserError(f"{where}.{AUDIT}: write {{people: 40 a round}} with 2 answers or more; got {audit}")
    if question is not None and (not isinstance(question, str) or not question.strip()):
        raise UserError(f"{where}.{AUDIT}.question: name a file with what people are asked; got `{question}`")
    unsure = audit.get("unsure", 0)
    most = max(count - LEAST_DRAWN, 0)
    if isinstance(unsure, bool) or not isinstance(unsure, int) or not 0 <= unsure <= most:
        raise UserError(
            f"{where}.{AUDIT}.unsure: write a whole number up to {most}, for at least {LEAST_DRAWN} of {count} answers"
            f" are drawn evenly; got `{unsure}`"
        )
    return count, question, unsure
