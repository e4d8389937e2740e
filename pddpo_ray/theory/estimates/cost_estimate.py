"""Estimates of the expected cost, with standard errors (paper.md §5), from what was measured of single answers.

An answer's cost under a limit is one of three signals:

- `logit_labels`: the clipped logit of the unsafe share among its M labels. The theory's estimate, on the scale of the
  cost; wants M >= 5.
- `unsafe_rate`: that share. Unbiased at M = 1, but it limits E[sigmoid(cost)], not E[cost]; the threshold is a rate.
- `cost_model`: a number of a cost model or another measure, on its own scale.

The estimate belongs to the policy that wrote the responses; a label about another version's text does not belong here.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import betaln, expit, logit, xlogy

from pddpo_ray.records import Array, CostEstimate, answers_seen
from pddpo_ray.theory.intervals import bounded_interval

Tokens = tuple[int, ...]
Factors = Mapping[Tokens, Array]
"""P_s / P_0 of every limit, by the prompt's tokens. [I]"""
Mode = Literal["logit_labels", "unsafe_rate", "cost_model"]
MOST_NOISE = 0.999
"""Share of a variance that may be taken out as noise: without variance Newton's step has no end. Of rare single labels
it can be 0.995."""
SMALLEST_PART = 0.1
"""Of the largest multiplier times standard deviation: below it a cost's noise is not reported."""


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
    return _label_chances(cost, labels_each) @ clipped_logit(np.arange(labels_each + 1) / labels_each, cost_max)


def _label_chances(cost: ArrayLike, labels_each: int) -> Array:
    """Chances of 0, 1, ..., M unsafe labels of a response whose true cost is `cost`. [...] -> [..., M + 1]"""
    unsafe = np.arange(labels_each + 1)
    safe, logits = labels_each - unsafe, np.asarray(cost, dtype=np.float64)[..., None]
    log_ways = -betaln(unsafe + 1, safe + 1) - np.log(labels_each + 1)
    return np.exp(log_ways + xlogy(unsafe, expit(logits)) + xlogy(safe, expit(-logits)))


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
    values = clipped_logit(np.arange(labels_each + 1) / labels_each, cost_max)
    chances = _label_chances(values, labels_each)
    return chances @ values**2 - (chances @ values) ** 2


def label_variance(unsafe_shares: ArrayLike, labels_each: int) -> Array:
    """Unbiased variance of a mean of M labels about its probability, p (1 - p) / (M - 1); 0 at M = 1. [n] -> [n]

    One label says nothing about its own noise; `noise_beside_learned` does.
    """
    shares = np.asarray(unsafe_shares, dtype=np.float64)
    return shares * (1.0 - shares) / (labels_each - 1) if labels_each > 1 else np.zeros_like(shares)


def mean_with_error(values: ArrayLike) -> tuple[float, float]:
    """Mean and its standard error sd/sqrt(N) of independent values [N], N >= 2."""
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or numbers.size < 2:
        raise ValueError(f"an estimate with a standard error needs at least 2 responses, got shape {numbers.shape}")
    return float(numbers.mean()), float(numbers.std(ddof=1) / math.sqrt(numbers.size))


def estimate_from_shares(
    shares: ArrayLike, *, labels_each: int, cost_max: float, mode: Mode = "logit_labels"
) -> CostEstimate:
    """Estimate from the unsafe share of each response [N] among `labels_each` labels, or from a cost model's scores.

    Of independent responses that have all their labels, for pages and studies; a run has `estimates_on_sets`.
    """
    costs = clipped_logit(shares, cost_max) if mode == "logit_labels" else shares
    bound = cost_max if mode == "logit_labels" else None
    return CostEstimate(*mean_with_error(costs), int(np.size(shares)), labels_each, mode, cost_max=bound)


# --- of a run's limits, all at once ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MeasuredAnswer:
    """One answer with its cost under each limit, on the limit's own prompt set. costs, noise [I], nan: no number"""

    round: int
    prompt: Tokens
    answer: Tokens
    draw: str
    """Names the draw of its prompt: answers of one draw are not independent of each other."""
    costs: Array
    noise: Array
    """Variance of each cost's label noise."""
    failed: NDArray[np.bool_]
    """Which costs were asked for and could not be measured; other costs without a number were not asked for. [I]"""
    against: Array | float = 0.0
    """What a limit on a difference to the reference takes off: the cost of the reference's answer, nan: not known. It
    is the same for all answers to a prompt, so that nothing is learned from it. [I]"""
    people: Array | float = 0.0
    """Cost by people of an answer that they audited, nan: they gave none. For estimates; learners read `costs`. [I]"""
    chance: Array | float = 0.0
    """The chance that people were asked, where they were; 0: they were not. [I]"""
    ends: Array | tuple[float, float] = (math.nan, math.nan)
    """Lowest and highest cost where some labels of the answer are missing; nan elsewhere. [2, I]"""

    def or_lost(self, costs: Array, worst: Array, end: int, failed: NDArray[np.bool_]) -> Array:
        """The costs; where they `failed` [I] the end of the range that the labels leave open, or `worst`. [I]"""
        if not failed.any():  # of nearly all answers
            return costs
        return np.where(failed, np.where(np.isnan(self.ends[end]), worst, self.ends[end]), costs)

    def corrected(self, missing: Array) -> Array:
        """Costs corrected by people's, `missing` [I] in place of those that they did not give. [I]"""
        shape = self.costs.shape
        chance, people = _row(self.chance, shape), _row(self.people, shape)
        audit_mask = chance > 0
        if not audit_mask.any():
            return self.costs
        people_costs = np.where(np.isnan(people), missing, people)
        return corrected_by_people(self.costs, people_costs, audit_mask, np.where(audit_mask, chance, 1.0))


def _row(value: Array | float, shape: tuple[int, ...]) -> Array:
    """One number for each limit, from that or from one for all of them; quicker than `np.broadcast_to`. [I]"""
    return value if isinstance(value, np.ndarray) and value.shape == shape else np.full(shape, value)


@dataclass(frozen=True, eq=False)
class CostEstimates:
    """Expected costs of all limits from the same answers. means, standard_errors [I], covariance [I, I], draws [D, I]

    `covariance` is the one within prompts, E_x Cov_{y ~ policy}(C), as `within_covariance` has it. `draws` are the mean
    costs of each draw's answers, whose mean is the estimate; nan: none is on the limit's set. A limit whose costs
    people correct, or whose draws weigh unequally, has none.
    """

    means: Array
    standard_errors: Array
    covariance: Array
    draws: Array


@dataclass(frozen=True, eq=False)
class LearnedCosts:
    """What the stage of rates and means learned before these answers were measured."""

    values: Array
    """sum_i lambda_i C_i of each answer, up to a number for each prompt; nan: not known. [n]"""
    multipliers: Array
    """lambda_i in that stage; 0 for limits that have no part in it. [I]"""
    noisy: NDArray[np.bool_]
    """Limits whose label noise cannot be told from their own values: one label an answer. [I]"""


def corrected_by_people(machine: ArrayLike, people: ArrayLike, is_asked: ArrayLike, chance: ArrayLike) -> Array:
    """f + (s/pi)(y - f) of each item: its mean is that of people's values whatever the machine says. [n] x3 -> [n]

    s is 1 where people were asked, which had the chance pi in (0, 1], one for all or one each ([n] or []). `people` is
    read only where they were asked, and NaN there (no answer) stays NaN.
    """
    f, is_shown = np.asarray(machine, dtype=np.float64), np.asarray(is_asked, dtype=bool)
    y = np.where(is_shown, np.asarray(people, dtype=np.float64), f)
    return f + (y - f) / np.asarray(chance, dtype=np.float64)


def with_repeated_noise(
    newest: Sequence[MeasuredAnswer], measured: Sequence[MeasuredAnswer], repeatable: NDArray[np.bool_]
) -> list[MeasuredAnswer]:
    """The newest answers with the noise of each measurement as its repetitions show it.

    One label of an answer says nothing about its own noise. Where the same answer was measured more than once, in any
    round, the variance of those measurements replaces its noise, but not for a limit that is not `repeatable` [I], for
    example because its cost depends on the policy too.
    """
    costs_by_text: dict[tuple[Tokens, Tokens], list[Array]] = {}
    for answer in measured:
        costs_by_text.setdefault((answer.prompt, answer.answer), []).append(answer.costs)
    spreads = {text: np.var(costs, axis=0, ddof=1) for text, costs in costs_by_text.items() if len(costs) > 1}
    answers = []
    for answer in newest:
        spread = spreads.get((answer.prompt, answer.answer))
        noise = answer.noise if spread is None else np.where(np.isfinite(spread) & repeatable, spread, answer.noise)
        answers.append(replace(answer, noise=noise))
    return answers


def estimates_on_sets(
    measured: Sequence[MeasuredAnswer],
    factors: Factors,
    worst: Array,
    learned: LearnedCosts | None = None,
    *,
    end: int = 1,
) -> CostEstimates:
    """Expected cost of each limit over its own prompt set, from answers to prompts drawn over all sets.

    m = sum F m / sum F over the answers, F = P_s / P_0 of their prompts: on sets without common prompts the mean over
    the set's own answers. Standard errors count draws, not answers. An answer whose source gave no number counts as
    `worst` [I], the highest cost that there is; where that is not known (nan), and where the source was not asked, it
    is left out. One without some of its labels counts with these as the worst (`end` 1) or the best (0). Costs that
    people audited are corrected by theirs, one that they did not give by `worst`. Raises ValueError where a set has no
    answer.

    The covariance is that of the costs before people's corrections, which say little of a single answer. It is of the
    answers of one draw, or where no draw has two, of those to one prompt: given its prompt an answer is independent of
    all others, whichever draw it is of. `learned` tells the noise of labels of which each answer has one.
    """
    weights = np.array([factors[row.prompt] for row in measured])
    costs = np.array([row.or_lost(row.corrected(worst) - row.against, worst, end, row.failed) for row in measured])
    has_cost = np.isfinite(costs)
    # the reference's cost does not vary with the answer; a failure's cost without it is not known
    raw_costs = np.array([row.or_lost(row.costs, worst, end, row.failed & (row.against == 0)) for row in measured])
    # what acts nowhere on a prompt is known to cost nothing there
    on_all = np.where(weights == 0, 0.0, weights * raw_costs)
    weights, filled = np.where(has_cost, weights, 0.0), np.where(has_cost, costs, 0.0)
    total = weights.sum(axis=0)
    if (total == 0).any():
        raise ValueError(f"limit {int(np.argmax(total == 0))}: no answer of its prompt set has a number")
    means = (weights * filled).sum(axis=0) / total
    draws = np.unique([row.draw for row in measured], return_inverse=True)[1]
    count = int(draws.max()) + 1
    residuals, corrections = np.zeros((2, count, len(total)))
    by_chance, correction, inflation = _of_an_even_draw(measured, weights, worst)
    centred = filled - by_chance
    np.add.at(residuals, draws, weights * (centred - (weights * centred).sum(axis=0) / total))
    np.add.at(corrections, draws, weights * correction)
    by_people = (corrections * (2.0 * residuals - corrections)).sum(axis=0)
    squares = (residuals**2).sum(axis=0) + (inflation - 1.0) * np.maximum(by_people, 0.0)
    errors = np.sqrt(count / max(count - 1, 1) * squares) / total
    groups = draws.tolist() if count < len(measured) else [row.prompt for row in measured]
    noise = weights**2 * np.array([row.noise for row in measured])
    if learned is not None:
        variances = noise_beside_learned(on_all, learned.values, learned.multipliers, groups)
        noise = np.where(learned.noisy & np.isfinite(variances), np.maximum(variances, 0.0), noise)
    covariance = within_covariance(on_all, groups, noise)
    return CostEstimates(means, errors, covariance, _even_draws(measured, weights, filled, draws))


def _even_draws(measured: Sequence[MeasuredAnswer], weights: Array, costs: Array, draws: NDArray[np.intp]) -> Array:
    """Mean cost of each draw's answers, as `CostEstimates` has them. [n, I], [n, I], [n] -> [D, I]"""
    weight, total = np.zeros((2, int(draws.max()) + 1, weights.shape[1]))
    np.add.at(weight, draws, weights)
    np.add.at(total, draws, weights * costs)
    has_weight = weight > 0
    uneven = np.ptp(np.where(has_weight, weight, weight.max(axis=0)), axis=0) > 1e-9 * weight.max(axis=0)
    audited = np.array([_row(answer.chance, costs.shape[1:]) > 0 for answer in measured]).any(axis=0)
    return np.divide(total, weight, out=np.full_like(total, np.nan), where=has_weight & ~(uneven | audited))


def ends_by_draws(best: Array, worst: Array, bounds: tuple[float, float]) -> tuple[float, float] | None:
    """95 % interval of a mean within bounds by bets on the draws, with what is missing at its best for the low end and
    at its worst for the high one. None: fewer than two draws, or one outside of the bounds. [n], [n]"""
    low, high = bounds
    sides = [column[np.isfinite(column)] for column in (best, worst)]
    if any(values.size < 2 or (values < low).any() or (values > high).any() for values in sides):
        return None
    return bounded_interval(sides[0], low, high)[0], bounded_interval(sides[1], low, high)[1]


def answers_behind(measured: Sequence[MeasuredAnswer], index: int, factors: Factors) -> int:
    """Answers that an estimate of a limit rests on: those that its source was asked about.

    Of an audit the number that says as much as those that people saw (`answers_seen`), whatever a machine said of the
    others.
    """
    answers = [answer for answer in measured if factors[answer.prompt][index] > 0]
    measured_count = sum(bool(np.isfinite(answer.costs[index])) for answer in answers)
    chances = np.array([_row(answer.chance, answer.costs.shape)[index] for answer in answers])
    certain, drawn = int((chances == 1).sum()), int(((chances > 0) & (chances < 1)).sum())
    if certain or drawn:
        return answers_seen(certain, drawn, measured_count)
    return measured_count + sum(bool(answer.failed[index]) for answer in answers)


def means_by_people_alone(measured: Sequence[MeasuredAnswer]) -> Array:
    """Mean cost by people of the answers that they audited, 0 for one without their label; inf without audits. [I]

    An answer weighs as one over its chance to be asked about. A machine's labels of the others
    do not count, for the low end of an interval of a rate.
    """
    shape = measured[0].costs.shape
    chance = np.array([_row(answer.chance, shape) for answer in measured])
    people_costs = np.nan_to_num(np.array([_row(answer.people, shape) for answer in measured]), nan=0.0)
    least = np.where(chance > 0, chance, 1.0).min(axis=0)
    weights = np.where(chance > 0, least / np.where(chance > 0, chance, 1.0), 0.0)
    total = weights.sum(axis=0)
    return np.divide((weights * people_costs).sum(axis=0), total, out=np.full(shape, np.inf), where=total > 0)


def _of_an_even_draw(measured: Sequence[MeasuredAnswer], weights: Array, worst: Array) -> tuple[Array, Array, Array]:
    """What asking a fixed number n of N answers does to the squares of corrected costs. -> [N, I], [N, I], [I]

    Of f + (s/pi)(y - f) the part (s/pi - 1) D, D the mean of y - f, varies for no other reason than who was asked: over
    an even draw of fixed size it sums to 0, and so adds nothing to the error of the mean; of independent coins it would
    add (1/pi - 1) D^2 / N. What is left of the correction is (s/pi)(y - f - D). As D is the mean of the same n answers,
    the squares and products of what is left are too small on average: they count n (N - 1) / ((n - 1) N) times.

    Answers that were certain to be asked about (pi = 1) are no part of the draw: their cost is people's.
    """
    machine = np.array([answer.costs for answer in measured])
    chance = np.array([_row(answer.chance, machine[0].shape) for answer in measured])
    people = np.array([_row(answer.people, machine[0].shape) for answer in measured])
    certain = chance == 1
    audit_mask = (chance > 0) & (weights > 0) & ~certain
    differences = np.where(audit_mask, np.where(np.isnan(people), worst, people) - machine, 0.0)
    total = np.where(audit_mask, weights, 0.0).sum(axis=0)
    mean = np.divide((weights * differences).sum(axis=0), total, out=np.zeros_like(total), where=total > 0)
    times = np.where(audit_mask, 1.0 / np.where(audit_mask, chance, 1.0), 0.0)
    audits, number = audit_mask.sum(axis=0), ((weights > 0) & ~certain).sum(axis=0)
    inflation = np.where(audits > 1, audits / np.maximum(audits - 1, 1) * (number - 1) / np.maximum(number, 1), 1.0)
    return np.where(certain, 0.0, (times - 1.0) * mean), times * (differences - mean), inflation


# --- covariances within prompts --------------------------------------------------------------------------------------


def within_covariance(costs: ArrayLike, prompts: Sequence[Hashable], label_noise: ArrayLike | None = None) -> Array:
    """E_x Cov_{y|x}(C) from measured answers, the noise of their labels taken out. costs [n, I] -> [I, I]

    Answers of one prompt give its covariance, prompts count by their answers less one. `label_noise` [n, I] is the
    variance of each measured value about its expectation (`label_variance`; 0 for a rule). A cost that was not measured
    is nan: a covariance is then that of the answers with both costs. Where no prompt has two answers the total
    covariance stands in, which is larger: steps are shorter then, and end at the same point.
    """
    values = np.asarray(costs, dtype=np.float64)
    groups = _several(prompts)
    if not groups:
        return _about_means(values, [list(range(len(values)))])
    covariance = _about_means(values, groups)
    if label_noise is not None:
        indices = [index for members in groups for index in members]
        has_value = np.isfinite(values[indices])
        noise = np.asarray(label_noise, dtype=np.float64)[indices]
        noise = np.where(has_value, noise, 0.0).sum(axis=0) / np.maximum(has_value.sum(axis=0), 1)
        covariance -= np.diag(np.minimum(noise, MOST_NOISE * np.diag(covariance)))
    return _positive(covariance)


def noise_beside_learned(
    costs: ArrayLike, learned: ArrayLike, multipliers: ArrayLike, prompts: Sequence[Hashable]
) -> Array:
    """Variance of the label noise in each measured cost, told apart by what was learned before. [n, I], [n], [I] -> [I]

    One label of an answer says nothing about its own noise, and at a limit of 1 % it may be nearly all that varies.
    `learned` is sum_j lambda_j C_j as the policy has it from earlier labels: temperature * log base / policy of the
    value stage. The noise of new labels is independent of it, so that

        E_x Cov(C_i + noise_i, learned) = sum_j lambda_j Cov(C_i, C_j)

    and sum_j lambda_j of the measured covariances is more than that by lambda_i times the noise. Where what was learned
    is wrong, the covariance without this "noise" is still the slope that a step needs: -Cov(C_i, learned) is what moves
    E[C_i] of the policies exp(-learned / temperature) as all multipliers grow in proportion. nan: nothing was learned,
    no prompt has two answers, or the limit has less than a tenth of the largest lambda_j sd(C_j), so that the others'
    noise would drown its own.
    """
    values = np.column_stack([np.asarray(costs, dtype=np.float64), np.asarray(learned, dtype=np.float64)])
    weights, groups = np.asarray(multipliers, dtype=np.float64), _several(prompts)
    if not groups:
        return np.full(len(weights), np.nan)
    joint = _about_means(values, groups)
    covariance, with_learned = joint[:-1, :-1], joint[:-1, -1]
    parts = weights * np.sqrt(np.diag(covariance))
    usable = (parts > 0) & (parts >= SMALLEST_PART * parts.max(initial=0.0)) & (joint[-1, -1] > 0)
    return np.divide(covariance @ weights - with_learned, weights, out=np.full(len(weights), np.nan), where=usable)


def _several(prompts: Sequence[Hashable]) -> list[list[int]]:
    """Indices of the answers of each prompt that has more than one."""
    groups: dict[Hashable, list[int]] = {}
    for index, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(index)
    return [members for members in groups.values() if len(members) > 1]


def _about_means(values: Array, groups: Sequence[Sequence[int]]) -> Array:
    """Mean product of two columns about the means of their groups, over rows in which both are known. -> [I, I]"""
    total, freedom = np.zeros((2, values.shape[1], values.shape[1]))
    for members in groups:
        rows = values[members]
        has_value = np.isfinite(rows)
        counts = has_value.sum(axis=0)
        centred = np.where(has_value, rows, 0.0)
        centred -= has_value * (centred.sum(axis=0) / np.maximum(counts, 1))
        total += centred.T @ centred
        pair_counts = has_value.astype(np.float64).T @ has_value
        freedom += np.maximum(pair_counts - 1.0, 0.0)
    return np.divide(total, freedom, out=np.zeros_like(total), where=freedom > 0)


def _positive(covariance: Array) -> Array:
    """The nearest positive semidefinite matrix: an estimate less its noise may have negative eigenvalues."""
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)
