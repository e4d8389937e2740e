"""People's labels in the rows: "labels": {"brand": true} or {"harm": ["unsafe", "safe", ...]}, of wins
against the reference {"helpful": ["better", "tie", "worse"]}, of a mean {"tone": 3.5}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pddpo_ray.limits.quantities import VERDICT
from pddpo_ray.limits.sources import Answer, Source, Unmeasured, one_by_one

WORDS = {"yes": 1.0, "unsafe": 1.0, "no": 0.0, "safe": 0.0}
WINS = {"better": 1.0, "tie": 0.5, "worse": 0.0}
UNSURE = ("abstain", "unsure", None)


def people_source(
    limit: str,
    labels_each: int | None = None,
    *,
    wins: bool = False,
    bounds: tuple[float, float] | None = None,
) -> Source:
    """The share of an answer's labels that say yes, with exactly `labels_each` of them; of `wins` the share that
    call it better than the reference's (a tie is a half), with `bounds` the mean of numbers within them."""
    words = WINS if wins else WORDS
    example = "true"
    choices = "a label is true, false, yes, no, unsafe, safe or abstain"
    if wins:
        example, choices = '"better"', "a label is better, worse, tie or abstain"
    if bounds is not None:
        example, choices = f"{bounds[1]:g}", f"a label is a number from {bounds[0]:g} to {bounds[1]:g}, or abstain"

    def share(answer: Answer, begin: int = 0, step: int = 1) -> float | Unmeasured:
        row_labels = answer.row.get("labels")
        of_limit = row_labels.get(limit) if isinstance(row_labels, dict) else None
        labels: Sequence[Any] = of_limit if isinstance(of_limit, list) else [of_limit]
        if of_limit is None or not labels:
            return Unmeasured(f'gave no label: add "labels": {{"{limit}": {example}}} to the row')
        values = [_read(label, words) if bounds is None else _within(label, bounds) for label in labels]
        if wrong := [label for label, bit in zip(labels, values, strict=True) if bit is None and label not in UNSURE]:
            return Unmeasured(f"gave {wrong[0]!r}; {choices}")
        bits = [bit for bit in values if bit is not None]
        if not bits:
            return Unmeasured("abstained")
        if labels_each is not None and len(bits) < labels_each:
            return Unmeasured(f"gave {len(bits)} of {labels_each} labels")
        if labels_each is not None and len(bits) > labels_each:
            return Unmeasured(f"gave {len(bits)} labels, more than the {labels_each} of the limit")
        part = bits[begin::step]
        return sum(part) / len(part) if part else Unmeasured("gave a single label, which cannot be split")

    halves = one_by_one(lambda answer: share(answer, 0, 2)), one_by_one(lambda answer: share(answer, 1, 2))
    return Source("people", f"people, labels in the rows, limit {limit}", one_by_one(share), VERDICT, halves=halves)


def _read(label: Any, words: Mapping[str, float]) -> float | None:
    if isinstance(label, bool):
        label = "yes" if label else "no"
    return words.get(label.lower()) if isinstance(label, str) else None


def _within(label: Any, bounds: tuple[float, float]) -> float | None:
    number = isinstance(label, int | float) and not isinstance(label, bool)
    return float(label) if number and bounds[0] <= label <= bounds[1] else None
