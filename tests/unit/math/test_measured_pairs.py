"""Measured answers as pairs and as estimates, by hand; and the optimum of the twelve worlds with exact expectations."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from pddpo_lab.value_scores import table_scores
from pddpo_ray.limits.reading import stated_limit
from pddpo_ray.limits.sources import chosen_for
from pddpo_ray.parts.measuring import table_of
from pddpo_ray.records import CostEstimate, Measurement
from pddpo_ray.theory.estimates.cost_estimate import (
    Factors,
    MeasuredAnswer,
    ends_by_draws,
    estimates_on_sets,
    means_by_people_alone,
    with_repeated_noise,
)
from pddpo_ray.theory.estimates.estimate_interval import interval
from pddpo_ray.theory.estimates.prompt_sets import prompt_sets
from pddpo_ray.theory.intervals import bounded_ends, bounded_interval
from pddpo_ray.theory.losses.value_stage import _drawn_pairs, value_pairs, value_scale
from pddpo_ray.theory.multipliers.dual import DampedNewton, LimitState
from pddpo_ray.theory.multipliers.matrix_dual import newton_step

ORACLE = json.loads((Path(__file__).parents[2] / "data" / "limits.json").read_text())
NAN = float("nan")


def answer(
    prompt: int, text: int, *costs: float, round_: int = 1, draw: str = "", noise: float = 0.0
) -> MeasuredAnswer:
    draw = draw or f"{prompt}-{text}-{costs}"
    failed = np.isnan(costs)
    return MeasuredAnswer(round_, (prompt,), (text,), draw, np.array(costs), np.full(len(costs), noise), failed)


def test_equal_answers_are_one_with_their_mean_and_pairs_weigh_their_counts() -> None:
    """Answer 1 has costs 0, 1, 1 (mean 2/3), answer 2 has 0: 3 * 1 / 4. lambda 2, s 2: margin 2 (2/3 - 0) / 2."""
    measured = [answer(0, 1, 0.0), answer(0, 1, 1.0), answer(0, 1, 1.0, round_=3), answer(0, 2, 0.0)]
    (row,), (margin,) = value_pairs(measured, np.array([2.0]), {(0,): np.ones(1)}, 2.0)
    assert (row.prompt, row.chosen, row.rejected, row.weight, row.round) == ((0,), (1,), (2,), 0.75, 3)
    assert margin == pytest.approx(2 / 3)


def test_least_squares_over_the_pairs_of_a_table_ends_at_the_means() -> None:
    generator = np.random.default_rng(0)
    cells, values = generator.integers(0, 4, (300, 2)).tolist(), generator.random(300).tolist()
    measured = [answer(x, y, value) for (x, y), value in zip(cells, values, strict=True)]
    rows, margins = value_pairs(measured, np.array([1.0]), {(x,): np.ones(1) for x in range(4)}, 1.0)
    columns = ([row.prompt[0] for row in rows], [row.chosen[0] for row in rows], [row.rejected[0] for row in rows])
    scores = table_scores(*columns, margins, shape=(4, 4), weights=[row.weight for row in rows])
    means = np.array(
        [
            [np.mean([one.costs[0] for one in measured if (one.prompt, one.answer) == ((x,), (y,))]) for y in range(4)]
            for x in range(4)
        ]
    )
    np.testing.assert_allclose(scores, means - means.mean(axis=1, keepdims=True), atol=1e-9)


def test_of_many_answers_a_drawn_part_of_the_pairs_stands_for_all() -> None:
    """Each of 60 answers has 8 partners, the pairs' weights sum to those of all, and the differences are exact."""
    values = np.random.default_rng(1).random(60)
    measured = [answer(3, y, value) for y, value in enumerate(values)]
    rows, margins = value_pairs(measured, np.ones(1), {(3,): np.ones(1)}, 1.0, partners=8)
    met = np.zeros((60, 60), dtype=int)
    for row, margin in zip(rows, margins, strict=True):
        a, b = row.chosen[0], row.rejected[0]
        met[a, b] += 1
        met[b, a] += 1
        assert margin == pytest.approx(values[a] - values[b])
    np.testing.assert_array_equal(met.sum(axis=1), 8)
    assert met.max() == 1
    assert sum(row.weight for row in rows) == pytest.approx(60 * 59 / 2 / 60)
    assert rows == value_pairs(measured, np.ones(1), {(3,): np.ones(1)}, 1.0, partners=8)[0]


def test_limits_act_on_their_own_prompts_and_hold_the_others_where_they_were() -> None:
    """The second limit acts on prompt 1 alone (factor 4), the first on both: margins .2 / s and (.2 + 4 * .5) / s."""
    factors: Factors = {(0,): np.array([1.0, 0.0]), (1,): np.array([1.0, 4.0])}
    measured = [answer(0, 0, 0.3, 0.9), answer(0, 1, 0.1, 0.2), answer(1, 0, 0.3, 0.9), answer(1, 1, 0.1, 0.4)]
    _, margins = value_pairs(measured, np.array([1.0, 1.0]), factors, 5.0)
    assert margins == pytest.approx([0.2 / 5, 2.2 / 5])
    _, margins = value_pairs(measured, np.array([0.0, 1.0]), factors, 4.0)
    assert margins == pytest.approx([0.0, 0.5])


def test_an_answer_without_a_number_makes_no_pair_where_its_limit_acts() -> None:
    factors: Factors = {(0,): np.array([1.0, 0.0]), (1,): np.array([1.0, 2.0])}
    measured = [answer(x, y, 0.1 * y, NAN if y == 0 else 0.5) for x in (0, 1) for y in (0, 1)]
    rows, margins = value_pairs(measured, np.array([1.0, 1.0]), factors, 3.0)
    assert [row.prompt for row in rows] == [(0,)]
    assert margins == pytest.approx([-0.1 / 3])


def test_estimates_by_hand() -> None:
    """Three draws, two of them in the set of the second limit (factor 1.5): means over all and over the set.

    Residuals of draws of the first: answers .2 .4 | .6 .6 | 0 .6 about .4: sums -.2, .4, -.2; with 3/2 and over 6
    answers the standard error is sqrt(1.5 * .24) / 6 = .1.
    """
    factors: Factors = {(0,): np.array([1.0, 1.5]), (1,): np.array([1.0, 0.0])}
    measured = [
        answer(0, 0, 0.2, 1.0, draw="a"), answer(0, 1, 0.4, 0.0, draw="a"),
        answer(0, 0, 0.6, 1.0, draw="b"), answer(0, 1, 0.6, 1.0, draw="b"),
        answer(1, 0, 0.0, 0.5, draw="c"), answer(1, 1, 0.6, NAN, draw="c"),
    ]  # fmt: skip
    found = estimates_on_sets(measured, factors, np.array([1.0, 1.0]))
    np.testing.assert_allclose(found.means, [0.4, 0.75])
    assert found.standard_errors[0] == pytest.approx(0.1)
    # within draws: (.02 + 0 + .18) / 3 of the first; 1.5^2 * .5 / 3 of the second
    np.testing.assert_allclose(np.diag(found.covariance), [0.2 / 3, 2.25 * 0.5 / 3])


def test_where_no_draw_has_two_answers_those_to_one_prompt_tell_its_variance() -> None:
    """Prompt 0: 0 and 1 (squares .5 about their mean), prompt 1: 0, 0, 3 (6): 6.5 over 3, less the noise .25; a draw of
    two is enough for the draws' own."""
    factors: Factors = {(0,): np.ones(1), (1,): np.ones(1)}
    values = [(0, 0.0), (0, 1.0), (1, 0.0), (1, 0.0), (1, 3.0)]
    measured = [answer(x, row, value, draw=str(row), noise=0.25) for row, (x, value) in enumerate(values)]
    found = estimates_on_sets(measured, factors, np.array([1.0]))
    np.testing.assert_allclose(found.covariance, [[6.5 / 3 - 0.25]])
    np.testing.assert_allclose(found.means, [0.8])
    assert found.standard_errors[0] == pytest.approx(np.std([0, 1, 0, 0, 3], ddof=1) / np.sqrt(5))
    twice = [*measured, answer(0, 5, 2.0, draw="1", noise=0.25)]
    np.testing.assert_allclose(estimates_on_sets(twice, factors, np.array([1.0])).covariance, [[0.5 - 0.25]])


def test_an_answer_without_a_number_counts_as_the_worst_there_is_or_is_left_out() -> None:
    factors: Factors = {(0,): np.ones(1)}
    measured = [answer(0, 0, 0.2, draw="a"), answer(0, 1, NAN, draw="b")]
    assert estimates_on_sets(measured, factors, np.array([1.0])).means[0] == pytest.approx(0.6)
    assert estimates_on_sets(measured, factors, np.array([NAN])).means[0] == pytest.approx(0.2)
    with pytest.raises(ValueError, match="no answer of its prompt set"):
        estimates_on_sets([answer(0, 0, NAN)], factors, np.array([NAN]))


def test_an_answer_that_lacks_a_label_counts_with_this_one_as_the_worst() -> None:
    """Labels 1, 0 and a missing one: a rate of 2/3 or 1/3, and so a mean of (2/3 + 0) / 2 or (1/3 + 0) / 2."""
    limit = stated_limit("rude", {"rate": {"people": {}}, "at_most": "50 %", "labels_each": 3}, "recipe")
    given = [("a", 1.0), ("a", 0.0), ("a", None), ("b", 0.0), ("b", 0.0), ("b", 0.0)]
    records = [Measurement("rude", name, value, "" if value is not None else "no label") for name, value in given]
    table = table_of(records, [limit], ["a", "b"], 2.0)
    columns = (table.costs, table.noise, table.failed, table.against, table.people, table.chance, table.ends)
    measured = [MeasuredAnswer(1, (0,), (row,), str(row), *(one[row] for one in columns)) for row in range(2)]
    assert np.isnan(measured[0].costs).all(), "nothing is learned from it"
    means = [
        estimates_on_sets(measured, {(0,): np.ones(1)}, np.array([worst]), end=end).means[0]
        for end, worst in enumerate((0.0, 1.0))
    ]
    assert means == pytest.approx([1 / 6, 1 / 3])
    logit = stated_limit("harm", {"logit": {"people": {}}, "at_most": 0, "labels_each": 3}, "recipe")
    records = [replace(one, limit="harm") for one in records]
    ends = table_of(records, [logit], ["a", "b"], 2.0).ends
    np.testing.assert_allclose(ends[0, :, 0], np.log([1 / 2, 2.0]))
    assert np.isnan(ends[1]).all(), "the other has all its labels"


def test_what_was_not_asked_is_left_out_of_means_and_covariances() -> None:
    """The second limit was asked about draws a and b alone: mean and covariance are those of their four answers."""
    factors: Factors = {(0,): np.array([1.0, 2.0])}
    known = [answer(0, y, 0.1 * y, value, draw=draw) for y, (draw, value) in enumerate(
        [("a", 1.0), ("a", 0.0), ("b", 1.0), ("b", 1.0)])]  # fmt: skip
    unasked = [answer(0, y, 0.1 * y, NAN, draw="c") for y in (4, 5)]
    rest = [replace(one, failed=np.zeros(2, dtype=bool)) for one in unasked]
    found, alone = (estimates_on_sets(measured, factors, np.array([1.0, 1.0])) for measured in ([*known, *rest], known))
    assert found.means[1] == alone.means[1] == pytest.approx(0.75)
    assert found.standard_errors[1] == pytest.approx(alone.standard_errors[1] * np.sqrt((3 / 2) / (2 / 1)))
    np.testing.assert_allclose(found.covariance[1, 1], 4.0 * 0.25)
    np.testing.assert_allclose(found.covariance[0, 1], alone.covariance[0, 1])


def test_repeated_measurements_of_one_answer_show_their_noise() -> None:
    """Labels 0, 1, 1, 0 of answer 1: variance 1/3. Answer 2 was measured once and keeps what it says itself.

    What is no measure of the answers alone keeps its own noise however often an answer was seen.
    """
    earlier = [answer(0, 1, label) for label in (0.0, 1.0, 1.0)]
    newest = [answer(0, 1, 0.0), answer(0, 2, 1.0, noise=0.2)]
    found = with_repeated_noise(newest, [*earlier, *newest], np.array([True, True]))
    assert [one.noise[0] for one in found] == pytest.approx([1 / 3, 0.2])
    assert [one.costs[0] for one in found] == [0.0, 1.0]
    kept = with_repeated_noise(newest, [*earlier, *newest], np.array([False, True]))
    assert [one.noise[0] for one in kept] == [one.noise[0] for one in newest]


def test_repetitions_show_the_noise_of_each_limit_by_itself() -> None:
    """The first limit was 0, 1, 1, 0 of one answer, variance 1/3; the second 2, 2, 2, 6, variance 4."""
    measured = [answer(0, 1, first, second) for first, second in ((0.0, 2.0), (1.0, 2.0), (1.0, 2.0), (0.0, 6.0))]
    found = with_repeated_noise(measured[-1:], measured, np.array([True, True]))
    np.testing.assert_allclose(found[0].noise, [1 / 3, 4.0])


def test_means_by_people_alone_count_the_answers_that_people_were_asked_about() -> None:
    """Of the first limit two answers were shown, and one got the cost 0.5; of the second none was."""
    chance = np.array([0.5, 0.0])
    measured = [
        replace(answer(0, 1, 1.0, 1.0), people=np.array([0.5, 9.0]), chance=chance),
        replace(answer(0, 2, 1.0, 1.0), people=np.array([NAN, 9.0]), chance=chance),
        replace(answer(0, 3, 1.0, 1.0), people=np.array([9.0, 9.0])),
    ]
    assert means_by_people_alone(measured).tolist() == [0.25, np.inf]


def run_with_exact_expectations(world: dict[str, Any], rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Alternating value stage and joint dual step on a known world, no draws anywhere. -> multipliers [I], policy"""
    sets = prompt_sets(
        {n: s["prompts"] for n, s in world["prompt_sets"].items()},
        {n: s["share"] for n, s in world["prompt_sets"].items()},
    )
    signs = [-1.0 if "at_least" in limit else 1.0 for limit in world["limits"]]
    costs = np.array([s * np.array(limit["measure"]) for s, limit in zip(signs, world["limits"], strict=True)])
    bounds = [s * limit.get("at_most", limit.get("at_least")) for s, limit in zip(signs, world["limits"], strict=True)]
    factors = np.array([sets.factor(limit["over"]) for limit in world["limits"]])
    scales = np.ptp(costs, axis=(1, 2))
    shape = costs.shape[1:]
    by_prompt: Factors = {(x,): factors[:, x] for x in range(shape[0])}
    measured = [answer(x, y, *costs[:, x, y]) for x, y in np.ndindex(*shape)]
    base = np.log(world["reference"]) + np.array(world["reward"]) / world["beta"]
    rule = DampedNewton(rounds, world["beta"], 0.5, damping=0.8, trust=1.0)
    states = tuple(
        LimitState(limit["name"], 0.5 / scale, 20.0 / scale, bound, rule, scale)
        for limit, bound, scale in zip(world["limits"], bounds, scales, strict=True)
    )
    for _ in range(rounds):
        multipliers = np.array([state.multiplier for state in states])
        s = value_scale(multipliers, scales * factors.max(axis=1))
        rows, margins = value_pairs(measured, multipliers, by_prompt, s)
        columns = ([row.prompt[0] for row in rows], [row.chosen[0] for row in rows], [row.rejected[0] for row in rows])
        scores = table_scores(*columns, margins, shape=shape, weights=[row.weight for row in rows])
        policy = softmax(base - scores * s / world["beta"], axis=1)
        on_all = costs * factors[:, :, None]
        means = np.einsum("x,xy,ixy->i", sets.weights, policy, on_all)
        centred = on_all - np.einsum("xy,ixy->ix", policy, on_all)[:, :, None]
        covariance = np.einsum("x,xy,ixy,jxy->ij", sets.weights, policy, centred, centred)
        states, _ = newton_step(states, means - np.array(bounds), covariance)
    return np.array([state.multiplier for state in states]), policy


@pytest.mark.parametrize("world", ORACLE, ids=lambda world: world["kind"])
def test_the_value_stage_and_the_joint_step_end_at_the_worlds_optimum(world: dict[str, Any]) -> None:
    multipliers, policy = run_with_exact_expectations(world, 40)
    np.testing.assert_allclose(multipliers, world["optimum"]["multipliers"], rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(policy, world["optimum"]["policy"], atol=1e-5)


# --- audits -----------------------------------------------------------------------------------------------------------


def audited_round(rng: np.random.Generator, seed: int, missing: float = 0.0) -> list[MeasuredAnswer]:
    """40 answers of which people would call 30 % bad, a machine that calls half of the others bad too, 12 audited."""
    truth = rng.random(40) < rng.uniform(0.0, 0.6, 40)
    machine = truth | (rng.random(40) < 0.5)
    shown = chosen_for("rude, audited", 40, 12, seed)
    people, chance = np.zeros(40), np.zeros(40)
    people[shown] = np.where(rng.random(12) < missing, np.nan, truth[shown])
    chance[shown] = 12 / 40
    return [
        MeasuredAnswer(
            1, (row,), (0,), f"{row}", np.array([float(machine[row])]), np.zeros(1), np.zeros(1, dtype=bool),
            people=people[[row]], chance=chance[[row]],
        )
        for row in range(40)
    ]  # fmt: skip


@pytest.mark.full
@pytest.mark.slow
def test_an_audited_rate_is_that_of_people_however_wrong_the_machine_is() -> None:
    """4,000 rounds: the mean, its standard error and the interval, against the rate from which labels are drawn."""
    rng = np.random.default_rng(7)
    factors: Factors = {(row,): np.ones(1) for row in range(40)}
    found, errors, inside, machines = [], [], 0, []
    for seed in range(4000):
        measured = audited_round(rng, seed)
        estimates = estimates_on_sets(measured, factors, np.ones(1))
        value, error = float(estimates.means[0]), float(estimates.standard_errors[0])
        ends = interval(CostEstimate(value, error, 12, 1, "unsafe_rate", "rude"))
        assert ends is not None
        found.append(value)
        errors.append(error)
        inside += ends[0] <= 0.3 <= ends[1]
        machines.append(np.mean([one.costs[0] for one in measured]))
    assert np.mean(machines) == pytest.approx(0.65, abs=0.01)
    assert abs(np.mean(found) - 0.3) < 4 * np.std(found) / np.sqrt(4000)
    # of an even draw of fixed size, which varies less than independent coins: theirs is larger by a third in square
    assert 0.95 * np.var(found) <= np.mean(np.square(errors)) <= 1.06 * np.var(found)
    assert inside >= 0.95 * 4000


@pytest.mark.slow
@pytest.mark.parametrize("asked", [3, 6, 12])
def test_the_square_of_an_audits_standard_error_is_right_on_average_by_exact_enumeration(asked: int) -> None:
    """All draws of the audited out of 12 answers. People's mean over an endless world of such answers varies by
    S_y^2 / 12, and asking `asked` of 12 adds (1 - asked/12) S_{y-f}^2 / asked."""
    rng = np.random.default_rng(3)
    machine, people, stated = rng.random(12), rng.random(12), []
    factors: Factors = {(row,): np.ones(1) for row in range(12)}
    for shown in combinations(range(12), asked):
        chance = np.where(np.isin(np.arange(12), shown), asked / 12, 0.0)
        measured = [
            replace(answer(row, 0, machine[row]), draw=f"{row}", people=people[[row]], chance=chance[[row]])
            for row in range(12)
        ]
        stated.append(float(estimates_on_sets(measured, factors, np.ones(1)).standard_errors[0]) ** 2)
    drawing = (1 - asked / 12) * np.var(people - machine, ddof=1) / asked
    # a draw in which the correction would shrink the square is left as it is: hence no equality to the last digit
    assert np.mean(stated) == pytest.approx(np.var(people, ddof=1) / 12 + drawing, rel=1e-3)


def test_people_who_gave_no_label_are_bounded_from_both_sides() -> None:
    """f = 1, 0 and 0, the first two audited with chance 2/3, and people say nothing about the second."""
    measured = [
        replace(answer(row, 0, cost), people=np.array([said]), chance=np.array([chance]))
        for row, (cost, said, chance) in enumerate([(1.0, 0.0, 2 / 3), (0.0, NAN, 2 / 3), (0.0, 0.0, 0.0)])
    ]
    factors: Factors = {(row,): np.ones(1) for row in range(3)}
    low, high = (estimates_on_sets(measured, factors, np.array([worst])).means[0] for worst in (0.0, 1.0))
    # (1 + (0 - 1) 3/2 + 0 + (0 or 1) 3/2 + 0) / 3
    assert (low, high) == pytest.approx((-0.5 / 3, 1.0 / 3))
    other = answer(0, 1, 0.0)
    _, margins = value_pairs([measured[0], other], np.ones(1), factors, 1.0)
    assert margins == [1.0]  # learners read the machine's costs: 1 - 0, and not (1 - 3/2) - 0


def test_the_interval_of_a_mean_bets_on_what_each_draw_measured() -> None:
    """Two answers to each of 30 prompts are one draw each; a failed one counts as 0 for the low end and 4 for the high
    one. The ends are far closer than those of mean and standard error alone."""
    pairs = np.clip(np.random.default_rng(3).normal(1.0, 0.4, (30, 2)), 0.0, 4.0)
    measured = [answer(x, y, pairs[x, y], draw=f"{x:02}") for x in range(30) for y in range(2)]
    factors: Factors = {(x,): np.ones(1) for x in range(30)}
    found = estimates_on_sets(measured, factors, np.array([4.0]))
    np.testing.assert_allclose(found.draws[:, 0], pairs.mean(axis=1))
    ends = ends_by_draws(found.draws[:, 0], found.draws[:, 0], (0.0, 4.0))
    assert ends == pytest.approx(bounded_interval(pairs.mean(axis=1), 0.0, 4.0))
    summary = bounded_ends(float(found.means[0]), float(found.standard_errors[0]), 30, (0.0, 4.0))
    assert ends is not None
    assert ends[1] - ends[0] < 0.4 * (summary[1] - summary[0])

    lost = [replace(measured[0], costs=np.array([NAN]), failed=np.array([True])), *measured[1:]]
    best, worst = (estimates_on_sets(lost, factors, np.array([end])).draws[:, 0] for end in (0.0, 4.0))
    assert (best[0], worst[0]) == pytest.approx((pairs[0, 1] / 2.0, (4.0 + pairs[0, 1]) / 2.0))
    wider = ends_by_draws(best, worst, (0.0, 4.0))
    assert wider is not None
    assert wider[0] < ends[0] < ends[1] < wider[1]


def test_draws_that_weigh_differently_or_that_people_correct_have_no_bets() -> None:
    """Their plain mean is another number than the estimate; so is a draw outside of the bounds."""
    even = [answer(x, y, 0.1 * x, draw=f"{x}") for x in range(4) for y in range(2)]
    factors: Factors = {(x,): np.ones(1) for x in range(4)}
    audited = [replace(even[0], chance=np.array([0.5]), people=np.array([0.0])), *even[1:]]
    unasked = [replace(even[0], costs=np.array([NAN])), *even[1:]]
    for measured, own in ((unasked, factors), (audited, factors), (even, {**factors, (0,): np.array([2.0])})):
        assert np.isnan(estimates_on_sets(measured, own, np.ones(1)).draws).all()
    draws = estimates_on_sets(even, {**factors, (0,): np.zeros(1)}, np.ones(1)).draws[:, 0]
    np.testing.assert_allclose(draws, [NAN, 0.1, 0.2, 0.3])
    assert ends_by_draws(draws, draws, (0.0, 1.0)) is not None
    assert ends_by_draws(draws, draws, (0.0, 0.25)) is None
    assert ends_by_draws(draws[:2], draws[:2], (0.0, 1.0)) is None


def test_every_prompt_draws_pairs_of_its_own() -> None:
    assert _drawn_pairs(20, 4, (1,)) == _drawn_pairs(20, 4, (1,))
    assert _drawn_pairs(20, 4, (1,)) != _drawn_pairs(20, 4, (2,))
