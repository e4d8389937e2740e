"""A row under the names that its reader knows, and which of its fields the reader looked at."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pddpo_ray.data.problems import RowError

LABEL = re.compile(
    r"(?i)(^|[^a-z])(labels?|scores?|ratings?|rank(ing)?s?|preference|prefer(red)?|chosen|rejected|(is_?)?(un)?safe|"
    r"safety|safer|harm(ful|less)?|helpful(ness)?|toxic(ity)?|correct(ness)?|rewards?|margin|winner|votes?|verdict|"
    r"severity|better|worse|cheaper|costlier|thumbs?|quality|desirable|overall_preference|preference_strength)"
    r"([^a-z]|$)"
)
"""Names of fields that somebody's judgement stands in."""


class ReadFields(Mapping[str, Any]):
    """A row that remembers which fields were read; asking whether a field is there is no reading."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        value = self._row[name]
        self._read.add(name)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._row

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)

    def peek(self, name: str) -> Any:
        """The field's value or None, without having read it."""
        return self._row.get(name)

    def unread(self) -> list[str]:
        """Fields with a value that nobody looked at."""
        return [name for name, value in self._row.items() if name not in self._read and value not in (None, "", [], {})]


def renamed(row: Mapping[str, Any], columns: Mapping[str, str], ignore: frozenset[str]) -> dict[str, Any]:
    """The row under our names: `columns` has ours and theirs. Fields of `ignore` are left out, also among the questions
    in an Argilla record's `responses`."""
    theirs = {name: ours for ours, name in columns.items()}
    kept = {name: value for name, value in row.items() if name not in ignore and name not in columns}
    if isinstance(kept.get("responses"), Mapping):
        kept["responses"] = {name: value for name, value in kept["responses"].items() if name not in ignore}
    taken = {ours: row[name] for name, ours in theirs.items() if name in row}
    return {name: value for name, value in kept.items() if name not in theirs} | taken


def unread_labels(unread: Iterable[str]) -> list[str]:
    """Those of the fields that nobody read whose names say that a judgement stands in them."""
    return [name for name in unread if LABEL.search(name)]


def demand_labels_read(unread: list[str]) -> None:
    """RowError where a label would be lost in silence."""
    lost = unread_labels(unread)
    if lost:
        raise RowError(
            "unread-label",
            f"`{'`, `'.join(lost)}` would be lost: name what the fields are (--column prompt=question), or leave them"
            " out on purpose (--ignore)",
        )
