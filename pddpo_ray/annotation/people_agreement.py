"""How far people agree, and who answers at random. Pure functions of labels.

Disagreement is no fault by itself: the model says that a label is unsafe with probability sigmoid(cost), so on a
borderline answer honest people differ. The numbers here are reported, and a round never waits for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pddpo_ray.theory.intervals import wilson

Array = NDArray[np.float64]
Units = Sequence[Sequence[Hashable]]
"""Labels of each item, in any order; items with fewer than two say nothing about agreement."""


def krippendorff_alpha(units: Units) -> float:
    """Krippendorff's alpha for nominal labels: 1 - observed / expected disagreement. nan where nothing varies.

    Missing labels need no filling: every item weighs by the number of its labels.
    """
    return _alpha(_coincidences(units)[0].sum(axis=0))


def alpha_interval(units: Units, *, level: float = 0.95, resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
    """Interval of alpha by drawing items again with replacement. (nan, nan) with fewer than two items."""
    tables, _ = _coincidences(units)
    if len(tables) < 2:
        return float("nan"), float("nan")
    rng = np.random.default_rng([seed, len(tables), 41])
    draws = rng.multinomial(len(tables), np.full(len(tables), 1 / len(tables)), size=resamples)
    alphas = np.array([_alpha(np.tensordot(weights, tables, axes=1)) for weights in draws.astype(np.float64)])
    alphas = alphas[np.isfinite(alphas)]
    if not len(alphas):
        return float("nan"), float("nan")
    low, high = np.quantile(alphas, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def pairwise_agreement(units: Units) -> float:
    """Share of pairs of labels of one item that are equal, over all items. nan without pairs."""
    equal = total = 0
    for labels in units:
        counts = Counter(labels)
        total += len(labels) * (len(labels) - 1)
        equal += sum(count * (count - 1) for count in counts.values())
    return equal / total if total else float("nan")


def _coincidences(units: Units) -> tuple[Array, list[Hashable]]:
    """Coincidence table of each item with at least two labels. -> [items, values, values], values"""
    kept = [list(labels) for labels in units if len(labels) >= 2]
    values = sorted({label for labels in kept for label in labels}, key=repr)
    index = {value: number for number, value in enumerate(values)}
    tables = np.zeros((len(kept), len(values), len(values)))
    for table, labels in zip(tables, kept, strict=True):
        counts = np.bincount([index[label] for label in labels], minlength=len(values)).astype(np.float64)
        table += (np.outer(counts, counts) - np.diag(counts)) / (len(labels) - 1)
    return tables, values


def _alpha(table: Array) -> float:
    """alpha of a coincidence table [values, values]."""
    margins = table.sum(axis=0)
    total = margins.sum()
    expected = total**2 - (margins**2).sum()
    if total == 0 or expected == 0:
        return float("nan")
    return float(1 - (total - 1) * (total - np.trace(table)) / expected)


# --- one person against the others ----------------------------------------------------------------------------------

Votes = Mapping[str, Hashable]
"""Labels of one item by person."""

FLAG_BELOW = 0.01
FLAG_FROM = 20
"""Answers before anybody is judged: fewer cannot tell a careless person from an unlucky one."""


@dataclass(frozen=True)
class AgreementWithOthers:
    """One person's agreement with the others on the same items. `p_value` is the chance of agreeing so rarely when
    one's labels are exchangeable with those of the others."""

    answers: int
    agreement: float
    expected: float
    p_value: float

    @property
    def flagged(self) -> bool:
        return self.answers >= FLAG_FROM and self.p_value < FLAG_BELOW


def leave_one_out(items: Sequence[Votes], person: str) -> AgreementWithOthers:
    """Compares a person with everybody else by an exact permutation test.

    If the person is one like the others, their label on an item is equally likely to be any of the item's labels. Let
    T be the number of (item, other person) pairs that agree with them: its distribution under that hypothesis follows
    by convolution over items, with no assumption about how hard the items are. The p-value is P(T <= observed).
    """
    distribution: Array = np.ones(1)
    observed = pairs = answers = 0
    expected = 0.0
    for votes in items:
        others = len(votes) - 1
        if person not in votes or others < 1:
            continue
        counts = Counter(votes.values())
        observed += counts[votes[person]] - 1
        chances = np.zeros(others + 1)
        for count in counts.values():
            chances[count - 1] += count / len(votes)
        expected += float(chances @ np.arange(others + 1))
        distribution = np.convolve(distribution, chances).astype(np.float64)
        pairs += others
        answers += 1
    if not answers:
        return AgreementWithOthers(0, float("nan"), float("nan"), 1.0)
    p_value = min(1.0, float(distribution[: observed + 1].sum()))
    return AgreementWithOthers(answers, observed / pairs, expected / pairs, p_value)


def share_with_interval(count: int, total: int, level: float = 0.95) -> tuple[float, float, float]:
    """A share with Wilson's interval, e.g. of "left" among all sides chosen. (nan, 0, 1) of nothing."""
    if total == 0:
        return float("nan"), 0.0, 1.0
    return count / total, *wilson(count / total, total, level)
