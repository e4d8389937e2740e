"""Numbers about data that are gathered row by row: labels, harm, lengths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from pddpo_ray.data.formats.example import Example

Length = Callable[[str], int]


class Histogram:
    """Counts of whole numbers. Holds one number per distinct value."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, value: int) -> None:
        self._counts[value] += 1

    def summary(self) -> dict[str, Any]:
        """Mean, quantiles (the smallest value that a share of all does not exceed) and counts by powers of two."""
        total = sum(self._counts.values())
        if not total:
            return {"count": 0}
        buckets: Counter[int] = Counter()
        for value, times in self._counts.items():
            buckets[1 << max(value - 1, 0).bit_length()] += times
        return {
            "count": total,
            "mean": sum(value * times for value, times in self._counts.items()) / total,
            **{name: self._quantile(share, total) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))},
            "max": max(self._counts),
            "at_most": {str(bound): buckets[bound] for bound in sorted(buckets)},
        }

    def _quantile(self, share: float, total: int) -> int:
        rank, count = math.ceil(share * total), 0
        for value in sorted(self._counts):
            count += self._counts[value]
            if count >= rank:
                break
        return value


class Statistics:
    """Takes examples one by one. `length` measures a text: tokens where there is a tokenizer, else characters."""

    def __init__(self, length: Length, prompt: Callable[[Example], str], unit: str) -> None:
        self._length, self._prompt, self._unit = length, prompt, unit
        self._counts: Counter[str] = Counter()
        self._turns, self._categories, self._severities = Histogram(), Counter[str](), Counter[int]()
        self._prompts, self._answers, self._whole = Histogram(), Histogram(), Histogram()

    def add(self, example: Example) -> None:
        counts = self._counts
        counts[("prompts", "answers", "pairs")[len(example.answers)]] += 1
        self._turns.add(sum(turn.role == "user" for turn in example.prompt))
        prompt = self._length(self._prompt(example))
        lengths = [self._length(answer.text) for answer in example.answers]
        self._prompts.add(prompt)
        for length, answer in zip(lengths, example.answers, strict=True):
            self._answers.add(length)
            self._harm(answer.safe, answer.severity, answer.categories)
        self._whole.add(prompt + max(lengths, default=0))
        self._preferences(example, lengths)

    def _harm(self, safe: bool | None, severity: int | None, categories: tuple[str, ...]) -> None:
        self._counts["answers_safe" if safe else "answers_unlabelled" if safe is None else "answers_unsafe"] += 1
        if severity is not None:
            self._severities[severity] += 1
        self._categories.update(categories)

    def _preferences(self, example: Example, lengths: list[int]) -> None:
        counts = self._counts
        for name, label in (("helpful", example.better), ("harmless", example.safer)):
            if label is not None:
                counts[f"{name}_labels"] += 1
                counts[f"{name}_first"] += label == 0
                counts[f"{name}_longer"] += lengths[label] > lengths[1 - label]
        if example.better is not None and example.safer is not None:
            counts["both_labels"] += 1
            counts["opposed"] += example.better != example.safer

    def summary(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        counts = self._counts
        preferences = {
            name: {
                "labels": counts[f"{name}_labels"],
                "first_preferred": _share(counts[f"{name}_first"], counts[f"{name}_labels"]),
                "longer_preferred": _share(counts[f"{name}_longer"], counts[f"{name}_labels"]),
            }
            for name in ("helpful", "harmless")
        }
        judged = counts["answers_safe"] + counts["answers_unsafe"]
        return {
            "pairs": counts["pairs"],
            "answers": counts["answers"],
            "prompts": counts["prompts"],
            "preferences": preferences,
            "helpful_and_harmless_opposed": _share(counts["opposed"], counts["both_labels"]),
            "answers_judged": judged,
            "answers_safe": _share(counts["answers_safe"], judged),
            "severity": {str(level): self._severities[level] for level in sorted(self._severities)},
            "harm_categories": dict(self._categories.most_common()),
            "user_turns": self._turns.summary(),
            "length_unit": self._unit,
            "prompt_length": self._prompts.summary(),
            "answer_length": self._answers.summary(),
            "prompt_and_longest_answer": self._whole.summary(),
        }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
