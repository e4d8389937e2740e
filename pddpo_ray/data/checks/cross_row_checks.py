"""What is wrong between rows: repeats, ids given twice, labels that contradict each other, leaks between splits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pddpo_ray.data.checks.row_index import Entry, RowIndex, key_of
from pddpo_ray.data.formats.example import Example

HELD_OUT = 1
"""Code of a prompt from the held-out files; 0 is every other."""
UNKNOWN = 2
"""Digit of a missing label, beside 0 and 1."""


@dataclass(frozen=True)
class Finding:
    """A row that should be set aside because of another one."""

    entry: Entry
    kind: str
    other: Entry


class BetweenRows:
    """Collects every good row, then reports the rows that conflict with others."""

    def __init__(self, folder: Path) -> None:
        self._contents = RowIndex(folder, "content")
        self._ids = RowIndex(folder, "id")
        self._prompts = RowIndex(folder, "prompt")

    def add(self, example: Example, row: int, file: int, line: int, *, held_out: bool) -> None:
        opening = key_of(example.question)
        self._prompts.add(opening, Entry(row, file, line, HELD_OUT if held_out else 0))
        if held_out:
            return
        key, code = content(example)
        self._contents.add(key, Entry(row, file, line, code))
        if example.id is not None:
            self._ids.add(key_of(str(file), example.id), Entry(row, file, line, 0))

    def findings(self) -> Iterator[Finding]:
        """Findings by kind, the gravest first; a row may have several."""
        for group in self._contents.groups():
            yield from _contradictions(group)
        for group in self._contents.groups():
            yield from _repeats(group)
        for group in self._ids.groups():
            yield from (Finding(entry, "duplicate-id", group[0]) for entry in group[1:])
        for group in self._prompts.groups():
            held_out_entry = next((entry for entry in group if entry.code == HELD_OUT), None)
            if held_out_entry is not None:
                yield from (Finding(entry, "leakage", held_out_entry) for entry in group if entry.code != HELD_OUT)

    def distinct_prompts(self) -> int:
        """Opening questions, held-out files included."""
        return self._prompts.distinct()


def content(example: Example) -> tuple[bytes, int]:
    """Key of prompt and answers, in whatever order the answers stand, and the labels in that order as one number."""
    prompt_texts = [text for turn in example.prompt for text in (turn.role, turn.content)]
    order = sorted(range(len(example.answers)), key=lambda index: example.answers[index].text)
    texts = [example.answers[index].text for index in order]
    labels = [UNKNOWN if label is None else order.index(label) for label in (example.better, example.safer)]
    flags = [example.answers[index].safe for index in order] + [None, None]
    labels += [UNKNOWN if safe is None else int(safe) for safe in flags[:2]]
    code = 0
    for label in labels:
        code = 3 * code + label
    return key_of(*prompt_texts, "\x00", *texts), code


def _labels(code: int) -> list[int]:
    return [code // 3**digit % 3 for digit in range(4)]


def contradict(first: int, second: int) -> bool:
    """Whether the codes of two rows with the same texts hold opposite labels."""
    return any(a != b and UNKNOWN not in (a, b) for a, b in zip(_labels(first), _labels(second), strict=True))


def _contradictions(group: list[Entry]) -> Iterator[Finding]:
    """Every row that some other row of the group contradicts: nobody knows which of them is right."""
    firsts: dict[int, Entry] = {}
    for entry in group:
        firsts.setdefault(entry.code, entry)
    opponents = {code: next((e for c, e in firsts.items() if contradict(code, c)), None) for code in firsts}
    for entry in group:
        other = opponents[entry.code]
        if other is not None:
            yield Finding(entry, "contradiction", other)


def _repeats(group: list[Entry]) -> Iterator[Finding]:
    firsts: dict[int, Entry] = {}
    for entry in group:
        if entry.code in firsts:
            yield Finding(entry, "duplicate", firsts[entry.code])
        else:
            firsts[entry.code] = entry


REASONS = {
    "duplicate": "the same prompt, responses and labels as {}",
    "duplicate-id": "the same id as {}",
    "contradiction": "the opposite label for the same responses in {}",
    "leakage": "the prompt is also in the held-out {}",
}
