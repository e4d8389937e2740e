"""95 % intervals of the expected cost, from its estimates by each signal."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from pddpo_ray.records import Array, CostEstimate
from pddpo_ray.theory.estimates.cost_estimate import expected_clipped_logit
from pddpo_ray.theory.intervals import bounded_ends, clopper_pearson

LEVEL = 0.95


def interval(estimate: CostEstimate, level: float = LEVEL) -> tuple[float, float] | None:
    """Two-sided interval of the expected cost; None where no bounds of the scores are stated.

    A mean within stated bounds has the interval of bets, however skewed its values are: on what each draw measured
    (`cost_estimate.ends_by_draws`), or where that is not known on value and standard error (`intervals.bounded_ends`),
    which is wider. That one counts half as many draws as answers, for a draw of a run under `limits:` has two.

    A rate has the exact binomial interval, at the number of answers or, where the standard error says so, of fewer. A
    mean of clipped logits is a mean within [-C, C]. Then follow all expected costs that M labels an answer can turn
    into such a mean: that part does not shrink with more answers. With missing labels it reaches from the low end where
    they all say safe to the high end where they all say unsafe.
    """
    if estimate.low is not None and estimate.high is not None and level == LEVEL:
        return estimate.low, estimate.high
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
