"""Estimates of the expected cost, with standard errors and 95 % intervals (paper.md §5).

Three signals behind one record:

- `logit_labels`: mean over responses of the clipped logit of the unsafe share among M labels. The theory's estimate,
  on the scale of the cost; wants M >= 5.
- `unsafe_rate`: mean share of unsafe labels. Unbiased at M = 1, but it limits E[sigmoid(cost)], not E[cost]; the
  threshold is a rate.
- `cost_model`: mean score of a cost model, on that model's own scale.

The estimate belongs to the policy that wrote the responses; a label about another version's text does not belong here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import expit, logit

from pddpo_ray.errors import RunError
from pddpo_ray.records import Array, CostEstimate, SafetyLabels, Verdict
from pddpo_ray.theory.intervals import student_half_width, wilson

Mode = Literal["logit_labels", "unsafe_rate", "cost_model"]

LABELS_FOR_LOGIT = 20
"""From this many labels per response the interval of `logit_labels` is about the cost itself."""


BIAS_FACTOR = 1.5
"""The allowance is at least 1/1.48 of the true bias for every cost in [-C, C], C in 1..5 and 20 or more labels."""


def clipped_logit(unsafe_shares: ArrayLike, cost_max: float) -> Array:
    """logit(clip(share, sigmoid(-C), sigmoid(C))), so every value lies in [-C, C]. [...] -> [...]

    Without the clip, labels that agree would count as infinite, and the proofs need |c| <= C (paper.md erratum 6). It
    projects onto an interval that holds the true probability, so it never increases the error (paper.md erratum 7).
    """
    if cost_max <= 0:
        raise ValueError(f"cost_max must be above 0, got {cost_max}")
    shares = np.asarray(unsafe_shares, dtype=np.float64)
    # the outer clip removes the last bit by which logit(sigmoid(C)) may exceed C
    return np.clip(logit(np.clip(shares, expit(-cost_max), expit(cost_max))), -cost_max, cost_max)


def expected_clipped_logit(cost: ArrayLike, labels_each: int, cost_max: float) -> Array:
    """E[clipped logit] of a response whose true cost is `cost`, by the exact binomial sum. [...] -> [...]"""
    counts = np.arange(labels_each + 1)
    chances = stats.binom.pmf(counts, labels_each, expit(np.asarray(cost, dtype=np.float64))[..., None])
    return chances @ clipped_logit(counts / labels_each, cost_max)


def logit_bias(cost: ArrayLike, labels_each: int, cost_max: float) -> Array:
    """E[clipped logit] - cost; it pulls large costs towards zero when there are few labels. [...] -> [...]"""
    return expected_clipped_logit(cost, labels_each, cost_max) - np.asarray(cost, dtype=np.float64)


def bias_allowance(shares: ArrayLike, labels_each: int, cost_max: float) -> float:
    """Mean of |bias| at each response's own clipped estimate, times BIAS_FACTOR: a bound of the mean's bias. [N] -> []

    The plug-in bias itself is too noisy to subtract; its size is reported and widens the interval.
    """
    counts = np.rint(np.asarray(shares) * labels_each).astype(np.int64)
    return BIAS_FACTOR * float(np.mean(_bias_sizes(labels_each, cost_max)[counts]))


@lru_cache(maxsize=64)
def _bias_sizes(labels_each: int, cost_max: float) -> Array:
    """|bias| at the clipped logit of each number of unsafe labels. -> [M + 1]"""
    estimates = clipped_logit(np.arange(labels_each + 1) / labels_each, cost_max)
    return np.abs(logit_bias(estimates, labels_each, cost_max))


def logit_noise(shares: ArrayLike, labels_each: int, cost_max: float) -> Array:
    """Variance that label noise gives the clipped logit, at each response's own clipped estimate. [N] -> [N]"""
    counts = np.rint(np.asarray(shares) * labels_each).astype(np.int64)
    return _noise_sizes(labels_each, cost_max)[counts]


@lru_cache(maxsize=64)
def _noise_sizes(labels_each: int, cost_max: float) -> Array:
    """Variance of the clipped logit at the clipped logit of each number of unsafe labels. -> [M + 1]"""
    counts = np.arange(labels_each + 1)
    values = clipped_logit(counts / labels_each, cost_max)
    chances = stats.binom.pmf(counts, labels_each, expit(values)[:, None])
    return chances @ values**2 - (chances @ values) ** 2


def within_prompt_variance(values: ArrayLike, noise: ArrayLike, prompts: Sequence[str]) -> float | None:
    """E_x Var(c | x): pooled sample variance of values [N] within prompts, less the mean of `noise` [N]; at least 0.

    Times 1/beta it is the curvature of the dual (paper.md §6). None where every prompt has a single response.
    """
    numbers, names = np.asarray(values, dtype=np.float64), np.asarray(prompts)
    group = np.unique(names, return_inverse=True)[1]
    counts = np.bincount(group)
    if (freedom := int((counts - 1).sum())) == 0:
        return None
    centred = numbers - (np.bincount(group, weights=numbers) / counts)[group]
    return max(0.0, float((centred**2).sum()) / freedom - float(np.asarray(noise, dtype=np.float64).mean()))


def mean_with_error(values: ArrayLike) -> tuple[float, float]:
    """Mean and its standard error sd/sqrt(N) of independent values [N], N >= 2."""
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or numbers.size < 2:
        raise ValueError(f"an estimate with a standard error needs at least 2 responses, got shape {numbers.shape}")
    return float(numbers.mean()), float(numbers.std(ddof=1) / math.sqrt(numbers.size))


def unsafe_shares(verdicts: Sequence[SafetyLabels], labels_each: int) -> Array:
    """Share of UNSAFE among exactly `labels_each` labels per response. -> [N]

    Abstained, failed and missing labels never become numbers: RunError says how many responses lack how many.
    """
    rows = [
        (item.response.id, [label for label in item.labels if label in (Verdict.SAFE, Verdict.UNSAFE)])
        for item in verdicts
    ]
    lacking = [(name, labels_each - len(row)) for name, row in rows if len(row) < labels_each]
    if lacking:
        raise RunError(
            f"cost estimate: {len(lacking)} of {len(verdicts)} responses lack safety labels "
            f"({sum(missing for _, missing in lacking)} missing in all, first {lacking[0][0]} lacks {lacking[0][1]} of "
            f"{labels_each}); ask again or lower feedback.labels_each"
        )
    surplus = [name for name, row in rows if len(row) > labels_each]
    if surplus:
        raise RunError(f"cost estimate: {surplus[0]} has more than {labels_each} labels; pick exactly that many")
    return np.array([row.count(Verdict.UNSAFE) / labels_each for _, row in rows])


def estimate_cost(
    verdicts: Sequence[SafetyLabels],
    *,
    labels_each: int,
    cost_max: float,
    mode: Mode = "logit_labels",
    constraint: str = "cost",
) -> CostEstimate:
    """Estimate from safety labels, by `logit_labels` or `unsafe_rate`. Raises RunError when labels are missing."""
    shares = unsafe_shares(verdicts, labels_each)
    estimate = estimate_from_shares(
        shares, labels_each=labels_each, cost_max=cost_max, mode=mode, constraint=constraint
    )
    if mode != "logit_labels":
        return estimate
    noise = logit_noise(shares, labels_each, cost_max)
    prompts = [item.response.prompt.id for item in verdicts]
    return replace(estimate, within_variance=within_prompt_variance(clipped_logit(shares, cost_max), noise, prompts))


def estimate_from_shares(
    shares: ArrayLike, *, labels_each: int, cost_max: float, mode: Mode = "logit_labels", constraint: str = "cost"
) -> CostEstimate:
    """Estimate from the unsafe share of each response [N] among `labels_each` labels."""
    if mode == "cost_model":
        raise ValueError("mode cost_model takes scores: call estimate_from_scores")
    if mode == "unsafe_rate":
        value, error = mean_with_error(shares)
        return CostEstimate(value, error, int(np.size(shares)), labels_each, mode, constraint)
    value, error = mean_with_error(clipped_logit(shares, cost_max))
    allowance = bias_allowance(shares, labels_each, cost_max)
    return CostEstimate(value, error, int(np.size(shares)), labels_each, mode, constraint, allowance)


def estimate_from_scores(scores: ArrayLike, *, constraint: str = "cost") -> CostEstimate:
    """Estimate from a cost model's scores [N]; the threshold is on that model's scale."""
    value, error = mean_with_error(scores)
    return CostEstimate(value, error, int(np.size(scores)), 1, "cost_model", constraint)


def interval(estimate: CostEstimate, level: float = 0.95) -> tuple[float, float]:
    """Two-sided interval of the expected cost (of the expected clipped logit below LABELS_FOR_LOGIT labels).

    Student's t over responses; a rate near 0 or 1 gets Wilson's interval instead, at the number of independent labels
    that the standard error amounts to, because value ± 2 se undercovers there (and is empty when all labels agree).
    The logit's bias does not shrink with more responses, so its allowance is added on both sides.
    """
    if estimate.mode == "unsafe_rate" and 0 <= estimate.value <= 1:
        return wilson(estimate.value, _independent_labels(estimate), level)
    half = student_half_width(estimate.standard_error, estimate.responses, level)
    if estimate.labels_each >= LABELS_FOR_LOGIT:
        half += estimate.bias_allowance
    return estimate.value - half, estimate.value + half


def interval_warning(estimate: CostEstimate) -> str | None:
    """What the interval does not say, in words; None where it is about the cost itself."""
    if estimate.mode != "logit_labels" or estimate.labels_each >= LABELS_FOR_LOGIT:
        return None
    return (
        f"with {estimate.labels_each} labels per response (fewer than {LABELS_FOR_LOGIT}) the interval covers the "
        f"expectation of the clipped logit, which pulls large costs towards zero (bias up to about "
        f"{estimate.bias_allowance:.2f}); collect more labels per response or use mode unsafe_rate"
    )


def _independent_labels(estimate: CostEstimate) -> float:
    """How many independent labels have the standard error of a rate whose labels are clustered by response."""
    rate, variance = estimate.value, estimate.standard_error**2
    # labels that all agree carry no spread; then only the responses count as independent
    return rate * (1.0 - rate) / variance if variance > 0 else float(estimate.responses)
