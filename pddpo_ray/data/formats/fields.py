"""Single fields of a row, checked: each function returns the value or raises RowError with the reason."""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

from pddpo_ray.data.checks.problems import RowError, shown
from pddpo_ray.data.formats.columns import MISSING
from pddpo_ray.data.formats.example import Answer

SEVERITIES = range(4)
BLANK = "\u115f\u1160\u2800\u3164\uffa0\ufe0e\ufe0f\u034f"
"""Fillers and selectors that draw nothing, though Unicode calls them letters or marks."""

Fields = Mapping[str, Any]


def text(row: Fields, name: str) -> str:
    """A field that must hold text."""
    if name not in row:
        raise RowError("missing-field", f"there is no field `{name}`")
    return checked_text(row[name], name)


def checked_text(value: object, name: str) -> str:
    if value is None:
        raise RowError("null-field", f"`{name}` is null")
    if not isinstance(value, str):
        raise RowError("wrong-type", f"`{name}` is a {type(value).__name__}, not text")
    if not value.strip():
        raise RowError("empty-text", f"`{name}` is empty")
    if value.strip() in MISSING:
        raise RowError("null-field", f"`{name}` is {shown(value)}, as pandas writes a value that is missing")
    if not any(_is_visible(character) for character in value):
        raise RowError("empty-text", f"`{name}` holds nothing that can be seen")
    if "\x00" in value:
        raise RowError("broken-text", f"`{name}` holds a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RowError("broken-text", f"`{name}` holds half of a surrogate pair") from None
    return value


def _is_visible(character: str) -> bool:
    return unicodedata.category(character)[0] not in "CZ" and character not in BLANK


def choice(row: Fields, name: str) -> int | None:
    """Index of the preferred answer, 0 or 1; None where the field is absent or null."""
    value = _whole(row.get(name), name)
    if value is not None and value not in (0, 1):
        raise RowError("label-out-of-range", f"`{name}` is {shown(row[name])}; it must be 0 or 1")
    return value


def flag(row: Fields, name: str) -> bool | None:
    """True or false (also 1 and 0); None where the field is absent or null."""
    value = row.get(name)
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    number = _whole(value, name)
    if number is not None and number not in (0, 1):
        raise RowError("label-out-of-range", f"`{name}` is {shown(value)}; it must be true or false")
    return None if number is None else bool(number)


def severity(row: Fields, name: str) -> int | None:
    value = _whole(row.get(name), name)
    if value is not None and value not in SEVERITIES:
        raise RowError("label-out-of-range", f"`{name}` is {shown(row[name])}; it must be 0, 1, 2 or 3")
    return value


def categories(row: Fields, name: str) -> tuple[str, ...]:
    """Names of the harm categories that apply, from {name: bool}, or a list of names or numbers."""
    value = row.get(name)
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return tuple(str(key) for key, applies in value.items() if applies)
    if isinstance(value, list):
        return tuple(str(item) for item in value)
    raise RowError("wrong-type", f"`{name}` is a {type(value).__name__}, not categories")


def identity(row: Fields) -> str | None:
    """The row's id, if it has one."""
    value = row.get("id")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RowError("wrong-type", f"`id` is a {type(value).__name__}, not text or a number")
    return str(value)


def answer(row: Fields, *, response: str, safe: str, harm: str, level: str, digest: str) -> Answer:
    """One answer with its safety labels; the fields are named by the caller."""
    reply = text(row, response)
    labelled = Answer(reply, flag(row, safe), severity(row, level), categories(row, harm))
    if labelled.safe and (labelled.severity or 0) > 0:
        raise RowError("labels-disagree", f"`{safe}` is true and `{level}` is {labelled.severity}")
    if isinstance(row.get(digest), str):
        whole = hashlib.sha256((str(row.get("prompt")) + reply).encode()).hexdigest()
        if row[digest].lower() != whole:
            raise RowError("wrong-checksum", f"`{digest}` is not the SHA-256 of prompt and response: text was changed")
    return labelled


def number(value: object, name: str) -> float | None:
    """A number, also as text (CSV); None for null. RowError for anything else, NaN and infinity included."""
    if value is None or value == "":
        return None
    try:
        read = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        read = math.nan
    if not math.isfinite(read):
        raise RowError("wrong-type", f"`{name}` is {shown(value)}, not a number")
    return read


def _whole(value: object, name: str) -> int | None:
    """A whole number, also as 1.0 (columns with nulls are often stored so) or as text."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    read = None if isinstance(value, bool) else number(value, name)
    if read is None or not read.is_integer():
        raise RowError("wrong-type", f"`{name}` is {shown(value)}, not a whole number")
    return int(read)
