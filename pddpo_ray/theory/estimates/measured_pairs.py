"""From measured answers to what the learners and the dual read: pairs with differences, estimates on prompt sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from pddpo_ray.records import Array, PairRow, answers_seen
from pddpo_ray.theory.certificates.measured_draws import corrected_by_people
from pddpo_ray.theory.losses.value_stage import value_targets
from pddpo_ray.theory.multipliers.matrix_dual import CostEstimates, noise_beside_learned, within_covariance
from pddpo_ray.theory.seeds import generator

Tokens = tuple[int, ...]
PARTNERS = 32
"""Other answers to its prompt that a measured answer is compared with at most: all pairs of n would be n^2 / 2."""
Factors = Mapping[Tokens, Array]
"""P_s / P_0 of every limit, by the prompt's tokens. [I]"""


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

    def corrected(self, missing: Array) -> Array:
        """Costs corrected by people's, `missing` [I] in place of those that they did not give. [I]"""
        shape = self.costs.shape
        chance, people = np.broadcast_to(self.chance, shape), np.broadcast_to(self.people, shape)
        asked = chance > 0
        if not asked.any():
            return self.costs
        given = np.where(np.isnan(people), missing, people)
        return corrected_by_people(self.costs, given, asked, np.where(asked, chance, 1.0))


@dataclass(frozen=True, eq=False)
class LearnedCosts:
    """What the stage of rates and means learned before these answers were measured."""

    values: Array
    """sum_i lambda_i C_i of each answer, up to a number for each prompt; nan: not known. [n]"""
    multipliers: Array
    """lambda_i in that stage; 0 for limits that have no part in it. [I]"""
    noisy: NDArray[np.bool_]
    """Limits whose measured values have a noise that they do not tell themselves: one label an answer. [I]"""


def value_pairs(
    measured: Sequence[MeasuredAnswer], multipliers: Array, factors: Factors, scale: float, *, partners: int = PARTNERS
) -> tuple[list[PairRow], list[float]]:
    """Pairs of different answers to one prompt, and their margins sum_i lambda_i (C_i(chosen) - C_i(rejected)) / s.

    Equal answers are one answer with the mean of their costs. A pair of answers that were measured n and m times weighs
    n m / (all of the prompt's measurements), so that least squares over a table ends at those means. `factors` are
    P_s / P_0 by prompt [I]. Answers without a number under a limit that acts on their prompt make no pair.

    Of a prompt with many answers each is paired with about `partners` others, drawn evenly; a pair then weighs more by
    as much as fewer were drawn, so that the loss is that of all pairs on average.
    """
    groups: dict[Tokens, dict[Tokens, list[MeasuredAnswer]]] = {}
    for one in measured:
        factor = factors[one.prompt]
        if np.isfinite(one.costs[(factor > 0) & (multipliers > 0)]).all():
            groups.setdefault(one.prompt, {}).setdefault(one.answer, []).append(one)
    rows: list[PairRow] = []
    margins: list[float] = []
    for prompt, answers in groups.items():
        factor = factors[prompt]
        acting = (factor > 0) & (multipliers > 0)
        means = [np.mean([np.where(acting, one.costs, 0.0) for one in same], axis=0) for same in answers.values()]
        listed, total = list(answers.items()), sum(map(len, answers.values()))
        chosen_pairs, share = _drawn_pairs(len(listed), partners, prompt)
        for a, b in chosen_pairs:
            (chosen, first), (rejected, second) = listed[a], listed[b]
            newest = max(one.round for one in (*first, *second))
            weight = len(first) * len(second) / total / share
            rows.append(PairRow(f"values-{len(rows)}", prompt, chosen, rejected, newest, weight))
            target = 0.0 if scale == 0 else value_targets(multipliers * factor, means[a], means[b], scale)
            margins.append(float(target))
    return rows, margins


def _drawn_pairs(count: int, partners: int, prompt: Tokens) -> tuple[list[tuple[int, int]], float]:
    """Pairs of `count` answers and their share of all: each answer with those beside it on a circle drawn by seed."""
    reach = partners // 2
    if count - 1 <= 2 * reach:
        return list(combinations(range(count), 2)), 1.0
    circle = generator("value pairs", *prompt, count).permutation(count).tolist()
    pairs = [
        (min(a, b), max(a, b))
        for step in range(1, reach + 1)
        for a, b in zip(circle, circle[step:] + circle[:step], strict=True)
    ]
    return pairs, 2.0 * reach / (count - 1)


def with_repeated_noise(
    newest: Sequence[MeasuredAnswer], measured: Sequence[MeasuredAnswer], of_answers: NDArray[np.bool_]
) -> list[MeasuredAnswer]:
    """The newest answers with the noise of each measurement as its repetitions show it.

    One label of an answer says nothing about its own noise. Where the same answer was measured more than once, in any
    round, the variance of those measurements is the noise of one; elsewhere it stays as it is, and so does that of a
    measure that is not `of_answers` alone [I] but of the policy too.
    """
    known: dict[tuple[Tokens, Tokens], list[Array]] = {}
    for one in measured:
        known.setdefault((one.prompt, one.answer), []).append(one.costs)
    spreads = {text: np.var(costs, axis=0, ddof=1) for text, costs in known.items() if len(costs) > 1}
    answers = []
    for one in newest:
        spread = spreads.get((one.prompt, one.answer))
        noise = one.noise if spread is None else np.where(np.isfinite(spread) & of_answers, spread, one.noise)
        answers.append(replace(one, noise=noise))
    return answers


def estimates_on_sets(
    measured: Sequence[MeasuredAnswer], factors: Factors, worst: Array, learned: LearnedCosts | None = None
) -> CostEstimates:
    """Expected cost of each limit over its own prompt set, from answers to prompts drawn over all sets.

    m = sum F m / sum F over the answers, F = P_s / P_0 of their prompts: on sets without common prompts the mean over
    the set's own answers. Standard errors count draws, not answers. An answer whose source gave no number counts as
    `worst` [I], the highest cost that there is; where that is not known (nan), and where the source was not asked, it
    is left out. Costs that people audited are corrected by theirs, one that they did not give by `worst`. Raises
    ValueError where a set has no answer.

    The covariance is that of the costs before people's corrections, which say little of a single answer. `learned`
    tells the noise of labels of which each answer has one.
    """
    weights = np.array([factors[one.prompt] for one in measured])
    costs = np.array([np.where(one.failed, worst, one.corrected(worst) - one.against) for one in measured])
    known = np.isfinite(costs)
    # the reference's cost does not vary with the answer; a failure's cost without it is not known
    own = np.array([np.where(one.failed & (one.against == 0), worst, one.costs) for one in measured])
    # what acts nowhere on a prompt is known to cost nothing there
    on_all = np.where(weights == 0, 0.0, weights * own)
    weights, filled = np.where(known, weights, 0.0), np.where(known, costs, 0.0)
    total = weights.sum(axis=0)
    if (total == 0).any():
        raise ValueError(f"limit {int(np.argmax(total == 0))}: no answer of its prompt set has a number")
    means = (weights * filled).sum(axis=0) / total
    draws = np.unique([one.draw for one in measured], return_inverse=True)[1]
    count = int(draws.max()) + 1
    residuals, corrections = np.zeros((2, count, len(total)))
    by_chance, correction, counted = _of_an_even_draw(measured, weights, worst)
    centred = filled - by_chance
    np.add.at(residuals, draws, weights * (centred - (weights * centred).sum(axis=0) / total))
    np.add.at(corrections, draws, weights * correction)
    by_people = (corrections * (2.0 * residuals - corrections)).sum(axis=0)
    squares = (residuals**2).sum(axis=0) + (counted - 1.0) * np.maximum(by_people, 0.0)
    errors = np.sqrt(count / max(count - 1, 1) * squares) / total
    noise = weights**2 * np.array([one.noise for one in measured])
    if learned is not None:
        told = noise_beside_learned(on_all, learned.values, learned.multipliers, draws.tolist())
        noise = np.where(learned.noisy & np.isfinite(told), np.maximum(told, 0.0), noise)
    covariance = within_covariance(on_all, draws.tolist(), noise)
    return CostEstimates(means, errors, covariance)


def answers_behind(measured: Sequence[MeasuredAnswer], index: int, factors: Factors) -> int:
    """Answers that an estimate of a limit rests on: those that its source was asked about.

    Of an audit those that people saw, or that say as much: what none of them showed, a machine's word does not rule
    out.
    """
    mine = [one for one in measured if factors[one.prompt][index] > 0]
    known = sum(bool(np.isfinite(one.costs[index])) for one in mine)
    chances = np.array([np.broadcast_to(one.chance, one.costs.shape)[index] for one in mine])
    certain, drawn = int((chances == 1).sum()), int(((chances > 0) & (chances < 1)).sum())
    if certain or drawn:
        return answers_seen(certain, drawn, known)
    return known + sum(bool(one.failed[index]) for one in mine)


def means_by_people_alone(measured: Sequence[MeasuredAnswer]) -> Array:
    """Mean cost by people of the answers that they audited, one without their word at 0; inf where none was. [I]

    An answer weighs as one over its chance to be asked about. What they did not see a machine may call bad: its word is
    none for the low end of an interval of a rate.
    """
    shape = measured[0].costs.shape
    chance = np.array([np.broadcast_to(one.chance, shape) for one in measured])
    said = np.nan_to_num(np.array([np.broadcast_to(one.people, shape) for one in measured]), nan=0.0)
    least = np.where(chance > 0, chance, 1.0).min(axis=0)
    weights = np.where(chance > 0, least / np.where(chance > 0, chance, 1.0), 0.0)
    total = weights.sum(axis=0)
    return np.divide((weights * said).sum(axis=0), total, out=np.full(shape, np.inf), where=total > 0)


def _of_an_even_draw(measured: Sequence[MeasuredAnswer], weights: Array, worst: Array) -> tuple[Array, Array, Array]:
    """What asking a fixed number n of N answers does to the squares of corrected costs. -> [N, I], [N, I], [I]

    Of f + (s/pi)(y - f) the part (s/pi - 1) D, D the mean of y - f, varies for no other reason than who was asked: over
    an even draw of fixed size it sums to 0, and so adds nothing to the error of the mean; of independent coins it would
    add (1/pi - 1) D^2 / N. What is left of the correction is (s/pi)(y - f - D). As D is the mean of the same n answers,
    the squares and products of what is left are too small on average: they count n (N - 1) / ((n - 1) N) times.

    Answers that were certain to be asked about (pi = 1) are no part of the draw: their cost is people's.
    """
    machine = np.array([one.costs for one in measured])
    chance = np.array([np.broadcast_to(one.chance, machine[0].shape) for one in measured])
    people = np.array([np.broadcast_to(one.people, machine[0].shape) for one in measured])
    certain = chance == 1
    asked = (chance > 0) & (weights > 0) & ~certain
    differences = np.where(asked, np.where(np.isnan(people), worst, people) - machine, 0.0)
    among = np.where(asked, weights, 0.0).sum(axis=0)
    mean = np.divide((weights * differences).sum(axis=0), among, out=np.zeros_like(among), where=among > 0)
    times = np.where(asked, 1.0 / np.where(asked, chance, 1.0), 0.0)
    shown, number = asked.sum(axis=0), ((weights > 0) & ~certain).sum(axis=0)
    counted = np.where(shown > 1, shown / np.maximum(shown - 1, 1) * (number - 1) / np.maximum(number, 1), 1.0)
    return np.where(certain, 0.0, (times - 1.0) * mean), times * (differences - mean), counted
