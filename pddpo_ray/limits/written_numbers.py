"""Numbers as people write them in a limit: 80, `80 tokens`, `5 %`, `2 min`."""

from __future__ import annotations

import math
import re
from typing import Any

from pddpo_ray.errors import UserError

LARGEST = 1e18
"""Above any measurement; its sums and squares are still finite."""
NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+))"
PERCENT = re.compile(rf"^\s*{NUMBER}\s*%\s*$")
WITH_UNIT = re.compile(rf"^\s*{NUMBER}\s*([A-Za-zµ].*?)\s*$")
SECONDS = {"s": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0, "day": 86400.0}


def number_of(where: str, value: Any, *, share: bool, unit: str = "") -> float:
    """A number as people write it: 80, `80 tokens` in that unit, `5 %` of a share, `2 min` of minutes.

    Raises UserError for anything else.
    """
    if isinstance(value, str):
        if percent := PERCENT.match(value):
            if not share:
                raise UserError(f"{where}: `{value}` is a percentage, and this is no share; write the number itself")
            return _possible(where, float(percent[1]) / 100.0)
        match = WITH_UNIT.match(value)
        if match and not share:
            return _possible(where, float(match[1]) * _factor(where, value, match[2], unit))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        example = "a percentage such as `5 %` or a number from 0 to 1" if share else "a number such as 120"
        raise UserError(f"{where}: `{value}` is no number; write {example}")
    return _possible(where, float(value))


def _possible(where: str, number: float) -> float:
    if not abs(number) < LARGEST:
        raise UserError(f"{where}: no measure reaches {number:g}; give a smaller number")
    return number


def seconds_of(where: str, value: Any) -> float:
    """A length of time: `90 s`, `10 min`, `2 h`, or a number of seconds. Raises UserError."""
    seconds = number_of(where, value, share=False, unit="s")
    if seconds <= 0:
        raise UserError(f"{where} must be above 0, got `{value}`")
    return seconds


def _factor(where: str, value: str, written: str, unit: str) -> float:
    """What a number in the written unit is worth in the measure's own."""
    if written.rstrip("s") == unit.rstrip("s"):
        return 1.0
    written_seconds, unit_seconds = SECONDS.get(_singular(written)), SECONDS.get(_singular(unit))
    if written_seconds is None or unit_seconds is None:
        raise UserError(f"{where}: `{value}` is in {written}, and the measure is in {unit or 'no unit (state `unit`)'}")
    return written_seconds / unit_seconds


def _singular(unit: str) -> str:
    return unit if unit in SECONDS else unit.removesuffix("s")
