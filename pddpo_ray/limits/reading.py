"""Limits as they stand in a file, to typed limits and their sources. Percent and units are read as people write them.

limits:
  length:  {mean: {rule: words}, at_most: 80}
  refuses: {rate: {rule: refusal}, over: benign, at_most: 5 %, confidence: 95 %}
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pddpo_ray.config.document import read_document
from pddpo_ray.errors import UserError
from pddpo_ray.limits.quantities import Amount, Kind, Limit, Quantity
from pddpo_ray.limits.sources import Source, open_source

KINDS: Mapping[str, Kind] = {"rate": "rate", "mean": "mean", "logit": "logit", "kl": "kl"}
KEYS = ("over", "at_most", "at_least", "confidence", "bounds", "versus", "audited_by", "answers", "labels_each")
PERCENT = re.compile(r"^\s*([-+]?\d+(?:\.\d*)?|[-+]?\.\d+)\s*%\s*$")


@dataclass(frozen=True)
class MeasuredLimit:
    """A limit and what measures one answer for it."""

    limit: Limit
    source: Source


def read_limits(path: Path) -> list[MeasuredLimit]:
    """The limits of a recipe or of a file with `limits:` alone. Raises UserError with the key that is wrong."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a file with `limits:` in it")
    document, _ = read_document(path, path.name)
    limits = document.get("limits")
    if not isinstance(limits, dict) or not limits:
        near = difflib.get_close_matches("limits", [str(key) for key in document], 1, 0.6)
        raise UserError(
            f"{path.name}: no `limits:` in it" + (f"; did you mean limits for `{near[0]}`?" if near else "")
        )
    sets = document.get("prompts")
    known = list(sets) if isinstance(sets, dict) else None
    return [read_limit(str(name), given, path, known) for name, given in limits.items()]


def read_limit(name: str, given: Any, path: Path, sets: Sequence[str] | None = None) -> MeasuredLimit:
    """One entry of `limits:`; `sets` are the names under `prompts:`, None where the file names none."""
    where = f"{path.name}: limits.{name}"
    if not isinstance(given, dict):
        raise UserError(f"{where} must say what is measured, e.g. {{mean: {{rule: words}}, at_most: 80}}")
    kinds = [key for key in given if key in KINDS]
    for key in given:
        if key not in KINDS and key not in KEYS:
            raise UserError(f"{where}: unknown key `{key}`{_nearest(str(key), [*KINDS, *KEYS])}")
    if len(kinds) != 1:
        raise UserError(f"{where} needs exactly one of {', '.join(KINDS)}; it has {', '.join(kinds) or 'none of them'}")
    kind = KINDS[kinds[0]]
    _only_what_can_be_checked(where, kind, given)
    source = open_source(where, kind, given[kinds[0]], path.parent)
    over = given.get("over")
    if over is not None and sets is not None and over not in sets:
        raise UserError(f"{where}: there is no prompt set `{over}`{_nearest(str(over), list(sets))}")
    low, high = bounds_of(where, given.get("bounds"), source)
    quantity = Quantity(kind, source.unit, None if over is None else str(over), low, high)
    return MeasuredLimit(_limit(name, where, given, quantity), source)


def number_of(where: str, value: Any, *, share: bool) -> float:
    """A number as people write it: 80, `5 %` (a share alone), 0.05. Raises UserError for anything else."""
    percent = PERCENT.match(value) if isinstance(value, str) else None
    if percent:
        if not share:
            raise UserError(f"{where}: `{value}` is a percentage, and this is no share; write the number itself")
        return float(percent[1]) / 100.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        wanted = "a percentage such as `5 %` or a number from 0 to 1" if share else "a number such as 120"
        raise UserError(f"{where}: `{value}` is no number; write {wanted}")
    return float(value)


def bounds_of(where: str, given: Any, source: Source) -> tuple[float | None, float | None]:
    """Bounds of one measurement: those that are stated, else the source's own."""
    if given is None:
        return source.low, source.high
    if not isinstance(given, list) or len(given) != 2:
        raise UserError(f"{where}.bounds must be two numbers, e.g. [0, 400]; got {given}")
    low, high = (number_of(f"{where}.bounds", bound, share=False) for bound in given)
    if not low < high:
        raise UserError(f"{where}.bounds: {low:g} is not below {high:g}")
    return low, high


def _limit(name: str, where: str, given: Mapping[str, Any], quantity: Quantity) -> Limit:
    stated = [key for key in ("at_most", "at_least") if key in given]
    if len(stated) != 1:
        raise UserError(f"{where} needs at_most or at_least, one of the two")
    share = quantity.kind == "rate"
    bound = number_of(f"{where}.{stated[0]}", given[stated[0]], share=share)
    if share and not 0.0 <= bound <= 1.0:
        raise UserError(f"{where}.{stated[0]}: a rate lies between 0 and 100 %, got {100 * bound:g} %")
    if quantity.low is not None and quantity.high is not None and not quantity.low <= bound <= quantity.high:
        raise UserError(
            f"{where}.{stated[0]}: {bound:g} lies outside the measure's bounds [{quantity.low:g}, {quantity.high:g}]"
        )
    confidence = number_of(f"{where}.confidence", given.get("confidence", 0.95), share=True)
    if not 0.5 <= confidence < 1.0:
        raise UserError(f"{where}.confidence lies between 50 % and 100 %, got {100 * confidence:g} %")
    return Limit(name, Amount(quantity, bound), stated[0] == "at_least", confidence)


def _only_what_can_be_checked(where: str, kind: Kind, given: Mapping[str, Any]) -> None:
    if kind in ("logit", "kl"):
        raise UserError(
            f"{where}: `{kind}` is measured in a run; a file of answers can be checked for `rate` and `mean`"
        )
    for key in ("versus", "audited_by"):
        if key in given:
            raise UserError(f"{where}: `{key}` needs more than a file of answers; leave it out to check the rest")


def _nearest(word: str, words: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, words, 1, 0.5)
    return f"; did you mean `{close[0]}`?" if close else f"; known are {', '.join(words)}"
