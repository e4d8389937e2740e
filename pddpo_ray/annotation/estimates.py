"""Cost estimates when people do not answer everything: missing labels, and a model that answers most of it.

Missing labels are not neutral. If people skip the worst answers, what was observed is too low, the multiplier shrinks
and the policy becomes less safe; so what is missing is filled in three ways and all three are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pddpo_ray.cost_estimate import mean_with_error
from pddpo_ray.records import CostEstimate

Array = NDArray[np.float64]
FromShares = Callable[[Array], CostEstimate]


@dataclass(frozen=True)
class Fillings:
    """One estimate for each way to fill in what is missing; equal when nothing is."""

    observed: CostEstimate | None
    """Over the answers that have labels; None if fewer than two have."""
    all_safe: CostEstimate
    all_unsafe: CostEstimate
    missing: int

    def straddles(self, threshold: float) -> bool:
        """Whether the missing labels decide on which side of the limit the estimate lies."""
        return (self.all_safe.value > threshold) != (self.all_unsafe.value > threshold)


def three_fillings(unsafe: Sequence[int], labelled: Sequence[int], labels_each: int, estimate: FromShares) -> Fillings:
    """`unsafe[i]` of `labelled[i]` <= M labels of answer i say unsafe. `estimate` maps shares [N] to an estimate."""
    votes, seen = np.asarray(unsafe, dtype=np.float64), np.asarray(labelled, dtype=np.float64)
    if np.any(votes > seen) or np.any(seen > labels_each):
        raise ValueError("unsafe <= labelled <= labels_each must hold for every answer")
    missing = labels_each - seen
    some = seen > 0
    observed = estimate(votes[some] / seen[some]) if some.sum() >= 2 else None
    return Fillings(
        observed, estimate(votes / labels_each), estimate((votes + missing) / labels_each), int(missing.sum())
    )


# --- a model answers everything, people a part ------------------------------------------------------------------------


def inclusion_probabilities(uncertainty: ArrayLike, *, certain: int, random_share: float) -> Array:
    """Chance of each item [N] to be shown to people: 1 for the `certain` most uncertain ones, `random_share` else.

    No chance may be 0: an item that could never be shown would make the estimate trust the model there. Ties go to
    the earlier item.
    """
    doubt = np.asarray(uncertainty, dtype=np.float64)
    if not 0 < random_share <= 1 or certain < 0:
        raise ValueError("random_share must be in (0, 1] and certain at least 0")
    chances = np.full(doubt.shape, random_share)
    chances[np.argsort(-doubt, kind="stable")[:certain]] = 1.0
    return chances


def draw_for_people(chances: ArrayLike, seed: Sequence[int]) -> NDArray[np.bool_]:
    """Which items people get: each one independently with its chance. [N] -> [N]"""
    probabilities = np.asarray(chances, dtype=np.float64)
    return np.random.default_rng(list(seed)).random(probabilities.shape) < probabilities


def mixed_estimate(
    model: ArrayLike, people: ArrayLike, asked: ArrayLike, chances: ArrayLike, *, constraint: str = "cost"
) -> CostEstimate:
    """Mean of what people would say about all items, from a model on all and people on some.

    value = 1/N sum_i [ m_i + (s_i / pi_i) (y_i - m_i) ], with s_i = 1 where people were asked. E[s_i] = pi_i makes it
    unbiased for mean(y) however wrong the model is; a good model only makes it less noisy (control variate). The terms
    are independent, so their spread gives an honest standard error, people's own noise included.

    model [N], people [N] (ignored where not asked), asked [N] bool, chances [N] in (0, 1].
    """
    m, y = np.asarray(model, dtype=np.float64), np.asarray(people, dtype=np.float64)
    s, chance = np.asarray(asked, dtype=bool), np.asarray(chances, dtype=np.float64)
    if np.any(chance <= 0) or np.any(chance > 1):
        raise ValueError("every item needs a chance in (0, 1] of being shown to people")
    corrections = np.where(s, (np.where(s, y, 0.0) - m) / chance, 0.0)
    value, error = mean_with_error(m + corrections)
    if not math.isfinite(value):
        raise ValueError("labels of people and the model's scores must be numbers")
    return CostEstimate(value, error, int(m.size), 1, "cost_model", constraint)
