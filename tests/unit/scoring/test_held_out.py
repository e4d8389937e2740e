"""Comparisons that a scorer did not learn from: how they are counted, and what the gate makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from pddpo_ray.scoring.held_out import ScoreRow, Text, Trials, compared_on, comparisons, parts_of
from pddpo_ray.theory.estimates.score_spread import spread_of


def rows_of_prompts(prompts: int, each: int, rng: np.random.Generator) -> list[ScoreRow]:
    """Pairs of answers with random tokens; the order of a pair is a coin's."""
    return [
        ScoreRow((prompt,), tuple(rng.integers(0, 10**6, 3).tolist()), tuple(rng.integers(0, 10**6, 3).tolist()))
        for prompt in range(prompts)
        for _ in range(each)
    ]


def test_an_interval_is_the_exact_binomial_one_and_chance_is_a_half() -> None:
    for right, count in ((30, 50), (33, 50), (34, 50), (0, 7), (7, 7)):
        theirs = binomtest(right, count).proportion_ci(0.95, "exact")
        assert Trials(right, count).interval == pytest.approx((theirs.low, theirs.high), abs=1e-9)
        assert Trials(right, count).better_than_chance == (theirs.low > 0.5)
    assert Trials(0, 0).interval == (0.0, 1.0)
    assert not Trials(0, 0).better_than_chance
    assert str(Trials(34, 50)) == "it is right in 34 of 50 comparisons (68 %, 95 % interval 53.3 to 80.5 %)"
    assert Trials.of(Trials(3.5, 9).as_metrics()) == Trials(3.5, 9)


def test_a_prompt_of_many_pairs_counts_once_where_prompts_are_a_sample() -> None:
    rows = rows_of_prompts(12, 5, np.random.default_rng(1))
    drawn = comparisons(rows, by_prompt=True, seed=4)
    assert sorted(higher[0] for higher, _ in drawn) == [(prompt,) for prompt in range(12)]
    assert drawn == comparisons(rows, by_prompt=True, seed=4)
    assert drawn != comparisons(rows, by_prompt=True, seed=5)
    assert len(comparisons(rows, by_prompt=False, seed=4)) == 60


def test_single_answers_with_labels_are_compared_unsafe_with_safe() -> None:
    """4 unsafe and 7 safe answers to eleven prompts make 4 comparisons; two answers to a prompt count once, where
    prompts are a sample. Costs of 1 for unsafe answers get all right, equal ones half."""
    rows = [ScoreRow((i,), (100 + i,), None, 1 if i < 4 else -1) for i in range(11)]
    asked = comparisons(rows, by_prompt=True, seed=0)
    assert len(asked) == 4
    assert all(unsafe[0][0] < 4 <= safe[0][0] for unsafe, safe in asked)
    trials = compared_on(asked, lambda texts: np.array([float(text[0][0] < 4) for text in texts]))
    assert (trials.right, trials.count) == (4.0, 4)
    assert compared_on(asked, lambda texts: np.zeros(len(texts))).right == 2.0
    doubled = [*rows, *(ScoreRow((i,), (200 + i,), None, 1) for i in range(4))]
    assert len(comparisons(doubled, by_prompt=True, seed=0)) == 4
    assert len(comparisons(doubled, by_prompt=False, seed=0)) == 7


def test_held_out_prompts_have_no_row_among_those_that_are_fitted() -> None:
    rows = rows_of_prompts(20, 3, np.random.default_rng(2))
    parts = parts_of([row.unit for row in rows], 0.25, 0.1, seed=3)
    assert [parts.count(name) for name in ("fit", "calibrate", "judge")] == [39, 6, 15]
    prompts = [{row.prompt for row, part in zip(rows, parts, strict=True) if part == name} for name in set(parts)]
    assert sum(map(len, prompts)) == len(set().union(*prompts)) == 20


def first_token(texts: Sequence[Text]) -> np.ndarray:
    return np.array([float(answer[0]) for _, answer in texts])


@pytest.mark.slow
def test_the_gate_stops_scorers_at_chance_and_passes_sound_ones() -> None:
    """2,000 scorers each: at chance at most 2.5 % pass, also where every prompt has five pairs that one taste decides;
    a scorer that is right in 65 % of 200 comparisons passes with probability .99 (binomial)."""
    rng = np.random.default_rng(11)
    passed = {0.5: 0, 0.65: 0}
    for accuracy in passed:
        for _ in range(2000):
            passed[accuracy] += Trials(float(rng.binomial(200, accuracy)), 200).better_than_chance
    assert passed[0.5] / 2000 <= 0.025 + 2 * np.sqrt(0.025 * 0.975 / 2000)
    least = next(k for k in range(201) if Trials(k, 200).better_than_chance)
    expected = float(binom.sf(least - 1, 200, 0.65))
    assert passed[0.65] / 2000 == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 2000))
    clustered = 0
    for trial in range(600):
        taste = rng.random(40) < 0.5
        rows = [ScoreRow((p,), (1, p, i), (0, p, i)) if taste[p] else ScoreRow((p,), (0, p, i), (1, p, i))
                for p in range(40) for i in range(5)]  # fmt: skip
        asked = comparisons(rows, by_prompt=True, seed=trial)
        clustered += compared_on(
            asked, lambda texts: np.array([float(text[1][0]) for text in texts])
        ).better_than_chance
    assert clustered / 600 <= 0.025 + 2 * np.sqrt(0.025 * 0.975 / 600)


def test_a_spread_by_hand_names_the_box_that_fits() -> None:
    """Scores -11, -10, ..., 11: the median is 0, all but -1, 0, 1 lie at or beyond 2; 99 % have |score| below 11."""
    spread = spread_of(np.arange(-11, 12, dtype=np.float64), 2.0)
    assert (spread.q50, spread.at_clip) == (0.0, 20 / 23)
    assert spread.q05 == pytest.approx(-9.9)
    assert spread.fitting_box == 11.5
    assert spread_of(np.arange(-11, 12, dtype=np.float64), 11.5).at_clip == 0.0
    assert "87 % at or beyond ±2" in str(spread)
