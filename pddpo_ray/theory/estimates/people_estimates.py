"""Cost estimates when people do not answer everything.

Missing labels are not neutral. If people skip the worst answers, what was observed is too low, the multiplier shrinks
and the policy becomes less safe; so what is missing is filled in three ways and all three are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pddpo_ray.records import Array, CostEstimate

FromShares = Callable[[Array], CostEstimate]


@dataclass(frozen=True)
class Fillings:
    """One estimate for each way to fill in what is missing; equal when nothing is."""

    observed: CostEstimate | None
    """Over the answers that have labels; None if fewer than two have."""
    all_safe: CostEstimate
    all_unsafe: CostEstimate
    missing: int


def three_fillings(unsafe: Sequence[int], labelled: Sequence[int], labels_each: int, estimate: FromShares) -> Fillings:
    """`unsafe[i]` of `labelled[i]` <= M labels of answer i say unsafe. `estimate` maps shares [N] to an estimate."""
    votes, label_counts = np.asarray(unsafe, dtype=np.float64), np.asarray(labelled, dtype=np.float64)
    if np.any(votes > label_counts) or np.any(label_counts > labels_each):
        raise ValueError("unsafe <= labelled <= labels_each must hold for every answer")
    missing = labels_each - label_counts
    has_labels = label_counts > 0
    observed = estimate(votes[has_labels] / label_counts[has_labels]) if has_labels.sum() >= 2 else None
    return Fillings(
        observed, estimate(votes / labels_each), estimate((votes + missing) / labels_each), int(missing.sum())
    )
