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
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, logit

from pddpo_ray.errors import RunError
from pddpo_ray.records import Array, CostEstimate, SafetyLabels, Verdict
from pddpo_ray.theory.intervals import bounded_ends, clopper_pearson

KNOWN = (Verdict.SAFE, Verdict.UNSAFE)
Mode = Literal["logit_labels", "unsafe_rate", "cost_model"]


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


@lru_cache(maxsize=64)
def bias_bound(labels_each: int, cost_max: float) -> float:
    """sup over |c| <= C of c - E[clipped logit | c], at least 0: how much the estimate can hide (paper.md §5).

    By symmetry it bounds the opposite bias too. A cost beyond C is hidden without bound: state C so that none is.
    """
    costs = np.linspace(-cost_max, cost_max, 2001)
    hidden = -logit_bias(costs, labels_each, cost_max)
    best = int(np.argmax(hidden))
    near = costs[max(best - 1, 0)], costs[min(best + 1, costs.size - 1)]
    refined = minimize_scalar(
        lambda cost: float(logit_bias(cost, labels_each, cost_max)), bounds=near, method="bounded"
    )
    return max(0.0, float(hidden[best]), -float(refined.fun))


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


def shift_to_rate(logits: ArrayLike, rate: float, prior: ArrayLike | None = None) -> float:
    """The shift at which the mean chance of a label "unsafe" is `rate`, which is kept off 0 and 1 by 1e-4. [X, n] -> []

    `prior` weighs the rows, each of whose answers count alike.
    """
    rows, aim = np.asarray(logits, dtype=np.float64), min(max(rate, 1e-4), 1.0 - 1e-4)

    def above(shift: float) -> float:
        return float(np.average(expit(rows + shift).mean(axis=1), weights=prior)) - aim

    reach = float(np.abs(rows).max()) + 10.0  # where every chance is below 1e-4, or above 1 - 1e-4
    return float(brentq(above, -reach, reach))


def unsafe_shares(verdicts: Sequence[SafetyLabels], labels_each: int) -> Array:
    """Share of UNSAFE among exactly `labels_each` labels per response. -> [N]

    Abstained, failed and missing labels never become numbers: RunError says how many responses lack how many.
    """
    given = [replace(item, labels=tuple(one for one in item.labels if one is not Verdict.MISSING)) for item in verdicts]
    return share_bounds(given, labels_each)[0]


def whole_shares(verdicts: Sequence[SafetyLabels], answers: Sequence[str], labels_each: int) -> list[float | None]:
    """Unsafe share of each of these answers, by id; None where it has not all of its labels."""
    whole = [one for one in verdicts if sum(label in KNOWN for label in one.labels) == labels_each]
    by_answer = dict(zip([one.response.id for one in whole], unsafe_shares(whole, labels_each).tolist(), strict=True))
    return [by_answer.get(answer) for answer in answers]


def share_bounds(verdicts: Sequence[SafetyLabels], labels_each: int) -> tuple[Array, Array]:
    """Lowest and highest share of UNSAFE among `labels_each` labels per response: MISSING ones say safe, or unsafe.
    -> [N], [N]

    Raises RunError where labels are lacking that nobody decided to do without.
    """
    known = (Verdict.SAFE, Verdict.UNSAFE, Verdict.MISSING)
    rows = [(item.response.id, [label for label in item.labels if label in known]) for item in verdicts]
    lacking = [(name, labels_each - len(row)) for name, row in rows if len(row) < labels_each]
    if lacking:
        raise RunError(
            f"cost estimate: {len(lacking)} of {len(verdicts)} responses lack safety labels "
            f"({sum(missing for _, missing in lacking)} missing in all, first {lacking[0][0]} lacks {lacking[0][1]} of "
            f"{labels_each}); ask again or lower the limit's labels_each"
        )
    surplus = [name for name, row in rows if len(row) > labels_each]
    if surplus:
        raise RunError(f"cost estimate: {surplus[0]} has more than {labels_each} labels; pick exactly that many")
    low = np.array([row.count(Verdict.UNSAFE) / labels_each for _, row in rows])
    return low, low + np.array([row.count(Verdict.MISSING) / labels_each for _, row in rows])


def estimate_cost(
    verdicts: Sequence[SafetyLabels],
    *,
    labels_each: int,
    cost_max: float,
    mode: Mode = "logit_labels",
) -> CostEstimate:
    """Estimate from safety labels, by `logit_labels` or `unsafe_rate`. Raises RunError when labels are lacking.

    Labels that a person decided to do without (MISSING) count as unsafe, and the interval holds what they may say.
    """
    low, shares = share_bounds(verdicts, labels_each)
    constraint = verdicts[0].constraint
    safest, estimate = (
        estimate_from_shares(one, labels_each=labels_each, cost_max=cost_max, mode=mode, constraint=constraint)
        for one in (low, shares)
    )
    estimate = with_missing(safest, estimate)
    if mode != "logit_labels":
        return estimate
    noise = logit_noise(shares, labels_each, cost_max)
    prompts = [item.response.prompt.id for item in verdicts]
    return replace(estimate, within_variance=within_prompt_variance(clipped_logit(shares, cost_max), noise, prompts))


def with_missing(safest: CostEstimate, worst: CostEstimate) -> CostEstimate:
    """The estimate with missing labels, from those in which they all say safe and all say unsafe: the latter, with the
    larger of both errors; `missing` is the difference of the values."""
    return replace(
        worst,
        standard_error=max(safest.standard_error, worst.standard_error),
        missing=max(worst.value - safest.value + safest.missing, worst.missing),
    )


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
    return CostEstimate(value, error, int(np.size(shares)), labels_each, mode, constraint, cost_max=cost_max)


def estimate_from_scores(scores: ArrayLike, *, constraint: str = "cost") -> CostEstimate:
    """Estimate from a cost model's scores [N]; the threshold is on that model's scale."""
    value, error = mean_with_error(scores)
    return CostEstimate(value, error, int(np.size(scores)), 1, "cost_model", constraint)


def interval(estimate: CostEstimate, level: float = 0.95) -> tuple[float, float] | None:
    """Two-sided interval of the expected cost; None where no bounds of the scores are stated.

    A mean within stated bounds has the interval of bets on them (`intervals.bounded_ends`), however skewed its values
    are: what was not seen yet may lie at either end. It counts half as many draws as answers, for a draw of a run under
    `limits:` has two.

    A rate has the exact binomial interval, at the number of answers or, where the standard error says so, of fewer. A
    mean of clipped logits is a mean within [-C, C]. Then follow all expected costs that M labels an answer can turn
    into such a mean: that part does not shrink with more answers. With missing labels it reaches from the low end where
    they all say safe to the high end where they all say unsafe.
    """
    if estimate.missing:
        worst = replace(estimate, missing=0.0)
        best = interval(replace(worst, value=estimate.value - estimate.missing), level)
        ends = interval(worst, level)
        return None if best is None or ends is None else (best[0], ends[1])
    if estimate.mode == "unsafe_rate":
        share = min(max(estimate.value, 0.0), 1.0)
        count = _independent_answers(share, estimate.standard_error, estimate.responses)
        return clopper_pearson(share * count, count, level)
    if estimate.mode == "cost_model" and estimate.bounds is not None:
        draws = max(2, estimate.responses // 2)
        return bounded_ends(estimate.value, estimate.standard_error, draws, estimate.bounds, level)
    if estimate.mode != "logit_labels" or estimate.cost_max is None:
        return None
    low, high = _clipped_interval(estimate, level)
    means, lowest, highest = _reachable_costs(estimate.labels_each, estimate.cost_max)
    return float(np.interp(low, means, lowest)), float(np.interp(high, means, highest))


def interval_warning(estimate: CostEstimate) -> str | None:
    """Why an interval is wide or missing, in words; None where answers alone decide its width."""
    ends = interval(estimate)
    if ends is None:
        return "no interval: bounds unknown"
    if estimate.missing:
        return (
            f"{estimate.missing:.2f} of the interval's {ends[1] - ends[0]:.2f} is what missing labels may say,"
            " or people about answers that a machine alone called unsafe"
        )
    if estimate.mode != "logit_labels":
        return None
    low, high = _clipped_interval(estimate, 0.95)
    hidden = (ends[1] - ends[0]) - (high - low)
    if hidden < (high - low) / 2.0:
        return None
    return (
        f"{hidden:.2f} of the interval's {ends[1] - ends[0]:.2f} is what {estimate.labels_each} labels per response"
        f" cannot tell about logits with C = {estimate.cost_max:g}; more answers do not shrink it: collect more labels"
        " per response or use mode unsafe_rate"
    )


def _clipped_interval(estimate: CostEstimate, level: float) -> tuple[float, float]:
    """Interval of the expectation of the clipped logit, inside [-C, C]."""
    assert estimate.cost_max is not None
    bounds = (-estimate.cost_max, estimate.cost_max)
    return bounded_ends(estimate.value, estimate.standard_error, estimate.responses, bounds, level)


@lru_cache(maxsize=64)
def _reachable_costs(labels_each: int, cost_max: float) -> tuple[Array, Array, Array]:
    """Means m of the clipped logit with the lowest and the highest mean cost in [-C, C] that has it. -> [n], [n], [n]

    Answers of different costs can be mixed, so these are the lower and the upper hull of the curve (E[logit | c], c).
    """
    costs = np.linspace(-cost_max, cost_max, 801)
    means = expected_clipped_logit(costs, labels_each, cost_max)
    return means, -_upper_hull(means, -costs), _upper_hull(means, costs)


def _upper_hull(xs: Array, ys: Array) -> Array:
    """Least concave curve above the points, at their xs, which rise. [n], [n] -> [n]"""
    corners: list[int] = []
    for index in range(xs.size):
        while len(corners) > 1:
            first, last = corners[-2], corners[-1]
            if (ys[last] - ys[first]) * (xs[index] - xs[first]) > (ys[index] - ys[first]) * (xs[last] - xs[first]):
                break
            corners.pop()
        corners.append(index)
    return np.interp(xs, xs[corners], ys[corners])


def _independent_answers(share: float, standard_error: float, responses: int) -> float:
    """How many right-or-wrong answers have this standard error; never more than there are."""
    if standard_error <= 0.0:
        return float(responses)
    # plus 1: the standard error is that of a sample, divided by N - 1
    return max(1.0, min(float(responses), share * (1.0 - share) / standard_error**2 + 1.0))
