"""Limits against rows in memory: what `pddpo limits check` does with files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.limits.answer_files import answer_of
from pddpo_ray.limits.check import Checked, check
from pddpo_ray.scoring.limit_sources import limits_given


def check_limits(limits: Mapping[str, Any] | str | Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, Checked]:
    """Every limit on rows with `prompt` (text or messages), `response`, perhaps `set` and `reference`. -> by name

    `limits` are a file's path, or what stands under `limits:` in one: `{"length": {"mean": {"rule": "words"},
    "at_most": 80, "bounds": [0, 200]}}`. Paths in them are relative to the file, or to the working folder. Nothing is
    trained. Raises UserError with the row or the key that is wrong.
    """
    opened = limits_given(limits)
    answers = [replace(answer_of(dict(row), f"row {n}"), where=f"row {n}") for n, row in enumerate(rows, start=1)]
    if not answers:
        raise UserError("there are no rows; give at least one with `prompt` and `response`")
    return {one.limit.name: one for one in check(opened, answers)}
