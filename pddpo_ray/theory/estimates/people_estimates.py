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

from pddpo_ray.records import Array, CostEstimate, answers_seen
from pddpo_ray.theory.certificates.measured_draws import corrected_by_people
from pddpo_ray.theory.estimates.cost_estimate import Mode, clipped_logit

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


@dataclass(frozen=True)
class Sample:
    """Which items people are asked about: `asked` [N] bool, and each item's probability [N] of being asked about."""

    asked: NDArray[np.bool_]
    chances: Array


def sample_for_people(doubt: ArrayLike, *, unsure: int, random: int, seed: Sequence[int]) -> Sample:
    """The `unsure` items of most doubt [N], and `random` others, drawn evenly without replacement.

    The former have chance 1, the latter the same chance each; no chance is 0, because an item that could never be
    shown would make the estimate trust the model there. Ties in doubt go to the earlier item.
    """
    values = np.asarray(doubt, dtype=np.float64)
    if unsure < 0 or random < 1:
        raise ValueError("unsure must be at least 0 and random at least 1")
    order = np.argsort(-values, kind="stable")
    others = np.sort(order[unsure:])
    drawn = np.random.default_rng(list(seed)).choice(others, size=min(random, others.size), replace=False)
    asked = np.zeros(values.shape, dtype=bool)
    asked[order[:unsure]] = True
    asked[drawn] = True
    chances = np.ones(values.shape)
    if others.size:
        chances[others] = drawn.size / others.size
    return Sample(asked, chances)


def mixed_estimate(
    model: ArrayLike,
    people: ArrayLike,
    sample: Sample,
    *,
    mode: Mode = "unsafe_rate",
    labels_each: int = 1,
    constraint: str = "cost",
    cost_max: float | None = None,
) -> CostEstimate:
    """Mean of what people would say about all N items, from a model on all and people on some.

    The value is the mean of `measured_draws.corrected_by_people`: unbiased for mean(y) however wrong the model is; a
    good model only makes it less noisy (a difference estimator).

    The squared standard error has two parts: that of a mean of N answers had people seen them all, and that of having
    drawn r of the R items with a chance below 1,

        S_y^2 / N  +  (R/N)^2 (1 - r/R) S_{y-m}^2 / r,

    S_y^2 weighted by 1/pi, S_{y-m}^2 over the drawn items. Labels of people are noisy; y holds that noise, so both do.

    model [N]; people [N], ignored where not asked. Raises ValueError if fewer than 2 of the drawn items were asked.
    """
    m, y = np.asarray(model, dtype=np.float64), np.asarray(people, dtype=np.float64)
    asked, chances = sample.asked, sample.chances
    if m.size < 2 or np.any(chances <= 0) or np.any(chances > 1):
        raise ValueError("two items or more are needed, each with a chance in (0, 1] of being shown to people")
    value = float(corrected_by_people(m, y, asked, chances).mean())
    if not math.isfinite(value):
        raise ValueError("labels of people and the model's scores must be numbers")
    weights = np.where(asked, 1.0 / chances, 0.0)
    centre = weights @ np.where(asked, y, 0.0) / m.size
    spread = float(weights @ np.where(asked, y - centre, 0.0) ** 2) / (m.size - 1)
    variance = spread / m.size + _drawing_variance(y - m, asked, chances)
    number, error = int(m.size), math.sqrt(variance)
    certain = chances == 1
    seen = None if certain.all() else answers_seen(int(certain.sum()), int((asked & ~certain).sum()), number)
    # what a machine alone calls unsafe is no word of people for the low end of an interval
    unconfirmed = max(0.0, value - float(centre)) if mode == "unsafe_rate" and seen is not None else 0.0
    return CostEstimate(
        value,
        error,
        number,
        labels_each,
        mode,
        constraint,
        cost_max=cost_max,
        missing=unconfirmed,
        seen=seen,
    )


def mixed_from_shares(
    model: ArrayLike, shares: ArrayLike, sample: Sample, *, labels_each: int, cost_max: float, mode: Mode
) -> CostEstimate:
    """The same from unsafe shares [N] of people, by the signal of the run (paper.md §5): what is averaged is the
    clipped logit of a share, or the share itself. `model` is on that scale. Shares are ignored where not asked.
    """
    given = np.where(sample.asked, np.asarray(shares, dtype=np.float64), 0.5)
    if mode == "unsafe_rate":
        return mixed_estimate(model, given, sample, mode=mode, labels_each=labels_each)
    signal = clipped_logit(given, cost_max)
    return mixed_estimate(model, signal, sample, mode=mode, labels_each=labels_each, cost_max=cost_max)


def _drawing_variance(differences: Array, asked: NDArray[np.bool_], chances: Array) -> float:
    """Variance added by asking about a random part of the items instead of all."""
    part = chances < 1
    size, drawn = int(part.sum()), int((part & asked).sum())
    if size == 0:
        return 0.0
    if drawn < 2:
        raise ValueError(f"only {drawn} of {size} items were drawn at random: a standard error needs at least 2")
    spread = float(np.var(differences[part & asked], ddof=1))
    return (size / len(chances)) ** 2 * (1 - drawn / size) * spread / drawn
