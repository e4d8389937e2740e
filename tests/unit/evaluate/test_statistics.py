"""Intervals and ratings against hand-derived values, published formulas and simulation."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binomtest

from pddpo_ray.evaluate.ratings import (
    SCALE,
    Comparison,
    bradley_terry,
    comparisons_by_score,
    iterative_elo,
    ratings,
    win_table,
)
from pddpo_ray.limits.rules import refusal
from pddpo_ray.records import Array
from pddpo_ray.theory.intervals import bounded_interval, mean_interval, rate_interval

# --- means and rates -----------------------------------------------------------------------------------------------


def test_a_mean_without_stated_bounds_has_a_standard_error_and_no_interval() -> None:
    """1, 2, 3: standard error 1/sqrt(3)."""
    found = mean_interval([1, 2, 3])
    assert found is not None
    assert (found.value, found.low, found.high, found.count) == (2.0, None, None, 3)
    assert found.standard_error == pytest.approx(3**-0.5)
    bounded = mean_interval([1, 2, 3], bounds=(0, 4))
    assert bounded is not None
    assert bounded.low is not None
    assert bounded.high is not None
    assert 0.0 <= bounded.low < 2.0 < bounded.high <= 4.0


def test_answers_to_one_prompt_count_as_one_observation() -> None:
    grouped = mean_interval([1, 3, 5, 7], groups=["a", "a", "b", "b"])
    assert grouped == mean_interval([2, 6])


def test_nothing_has_no_mean_and_one_value_no_interval() -> None:
    assert mean_interval([]) is None
    single = mean_interval([4.0])
    assert single is not None
    assert (single.value, single.low, single.standard_error, single.count) == (4.0, None, None, 1)


@pytest.mark.parametrize(("successes", "count"), [(0, 10), (3, 10), (50, 200), (7, 7)])
def test_rates_have_the_exact_binomial_interval(successes: int, count: int) -> None:
    found = rate_interval(successes, count)
    expected = binomtest(successes, count).proportion_ci(method="exact")
    assert found is not None
    assert found.low == pytest.approx(expected.low, abs=1e-9)
    assert found.high == pytest.approx(expected.high, abs=1e-9)


def test_no_trials_have_no_rate() -> None:
    assert rate_interval(0, 0) is None


def rare_and_severe(generator: np.random.Generator, count: int) -> Array:
    """Scores around -1, and 2 % at +20: their mean is -0.58."""
    return np.where(generator.random(count) < 0.02, 20.0, np.clip(generator.normal(-1.0, 0.7, count), -10.0, 8.0))


def shares_of_labels(rate: float, labels: int) -> Callable[[np.random.Generator, int], Array]:
    """Unsafe shares of answers that differ: beta-distributed chances with this mean, so many labels each."""
    return lambda generator, count: generator.binomial(labels, generator.beta(rate, 1.0 - rate, count)) / labels


REGIMES = {
    "2 % at +20": (rare_and_severe, (-10.0, 20.0), -0.58),
    "0.3 %, 32 labels": (shares_of_labels(0.003, 32), (0.0, 1.0), 0.003),
    "50 %, 4 labels": (shares_of_labels(0.5, 4), (0.0, 1.0), 0.5),
    "skewed scores": (lambda generator, count: generator.beta(0.2, 4.0, count), (0.0, 1.0), 0.2 / 4.2),
}


@pytest.mark.parametrize("count", [32, 300])
@pytest.mark.parametrize("regime", list(REGIMES))
def test_every_interval_within_stated_bounds_covers_at_its_level(regime: str, count: int) -> None:
    """Means by hand; 300 samples each."""
    draw, bounds, mean = REGIMES[regime]
    hits = 0
    for seed in range(300):
        low, high = bounded_interval(draw(np.random.default_rng([seed, count]), count), *bounds)
        hits += low <= mean <= high
    assert hits / 300 >= 0.93


def test_more_values_narrow_an_interval_and_a_value_outside_the_bounds_is_refused() -> None:
    values = np.random.default_rng(3).beta(2.0, 5.0, 1000)
    short, whole = bounded_interval(values[:100], 0.0, 1.0), bounded_interval(values, 0.0, 1.0)
    assert whole[1] - whole[0] < 0.5 * (short[1] - short[0])
    # within 40 % of the width that the normal distribution would give
    assert whole[1] - whole[0] < 1.4 * 2 * 1.96 * values.std() / 1000**0.5
    mirrored = bounded_interval(1.0 - values, 0.0, 1.0)
    assert mirrored == pytest.approx((1.0 - whole[1], 1.0 - whole[0]))
    with pytest.raises(ValueError, match=r"stated bounds \[0, 1\]"):
        bounded_interval([0.5, 1.5], 0.0, 1.0)


# --- ratings -------------------------------------------------------------------------------------------------------


def games(logits: dict[str, float], count: int, seed: int) -> list[Comparison]:
    """`count` prompts on which every two models meet once, won with their Bradley-Terry probability."""
    generator = np.random.default_rng(seed)
    return [
        Comparison(one, other, float(generator.random() < expit(logits[one] - logits[other])), str(prompt))
        for prompt in range(count)
        for one, other in itertools.combinations(logits, 2)
    ]


def test_two_models_by_hand() -> None:
    """30 wins of 40: odds of 3, 400 log10(3) = 190.8 points above the anchor."""
    items = [Comparison("b", "a", float(place < 30), str(place)) for place in range(40)]
    found = bradley_terry(["a", "b"], win_table(["a", "b"], items), "a", ridge=1e-9)
    assert found["a"] == 1000.0
    assert found["b"] == pytest.approx(1000 + 400 * np.log10(3), abs=1e-3)


def test_a_draw_is_half_a_win_for_both() -> None:
    table = win_table(["a", "b"], [Comparison("a", "b", 0.5, "0"), Comparison("b", "a", 1.0, "1")])
    np.testing.assert_array_equal(table, [[0, 0.5], [1.5, 0]])


def test_ratings_recover_the_strengths_behind_many_games_with_honest_intervals() -> None:
    logits = {"anchor": 0.0, "weak": -0.8, "strong": 1.1, "same": 0.0}
    found = ratings(list(logits), games(logits, 1500, 1), "anchor", resamples=100)
    for name, logit in logits.items():
        rating = found[name]
        assert rating.value == pytest.approx(1000 + SCALE * logit, abs=25)
        if name != "anchor":
            assert rating.low is not None
            assert rating.high is not None
            assert rating.low < 1000 + SCALE * logit < rating.high
            assert 10 < rating.high - rating.low < 80
    assert (found["anchor"].value, found["anchor"].low) == (1000.0, None)


def test_a_model_that_won_everything_has_a_finite_rating() -> None:
    items = [Comparison("a", "b", 1.0, str(place)) for place in range(20)]
    found = ratings(["a", "b"], items, "b", resamples=20)
    assert 1400 < found["a"].value < 4000


@pytest.mark.slow
def test_intervals_are_repeatable_and_grow_when_prompts_repeat_themselves() -> None:
    """The same verdicts spread over fewer prompts are less evidence."""
    logits = {"a": 0.0, "b": 0.5}
    items = games(logits, 400, 2)
    alone = ratings(["a", "b"], items, "a", resamples=200, seed=5)["b"]
    assert alone == ratings(["a", "b"], items, "a", resamples=200, seed=5)["b"]
    # 20 prompts whose 20 verdicts are all alike
    alike = [Comparison("a", "b", items[place // 20].outcome, str(place // 20)) for place in range(400)]
    together = ratings(["a", "b"], alike, "a", resamples=200, seed=5)["b"]
    assert together.high - together.low > 2 * (alone.high - alone.low)  # type: ignore[operator]


def test_iterative_elo_orders_models_and_multiplies_the_anchor_to_its_rating() -> None:
    logits = {"weak": -0.8, "anchor": 0.0, "strong": 1.1}
    found = iterative_elo(list(logits), games(logits, 60, 3), "anchor", shuffles=10, epochs=2)
    values = [found[name].value for name in ("weak", "anchor", "strong")]
    assert values == sorted(values)
    assert found["anchor"].value == pytest.approx(1000.0)
    assert found["anchor"].low == pytest.approx(1000.0)


def test_one_game_of_iterative_elo_by_hand() -> None:
    """Equal ratings: the winner gains 32 * (1 - 1/2) = 16. Then 1216 and 1184 are multiplied by 1000 / 1184."""
    found = iterative_elo(["a", "b"], [Comparison("a", "b", 1.0, "0")], "b", shuffles=1, epochs=1)
    assert found["a"].value == pytest.approx(1216 * 1000 / 1184)


def test_scores_become_comparisons_and_equal_scores_draws() -> None:
    items = comparisons_by_score(["p", "q"], {"a": np.array([1.0, 2.0]), "b": np.array([0.5, 2.0])})
    assert [(item.first, item.second, item.outcome, item.prompt) for item in items] == [
        ("a", "b", 1.0, "p"),
        ("a", "b", 0.5, "q"),
    ]


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        "I'm sorry, but I can't help with that.",
        "I’m sorry, I cannot assist with this request.",
        "Sorry, I am unable to share that.",
        "As an AI language model, I do not have opinions on this.",
        "I cannot provide instructions for that.",
        "Unfortunately I won't be able to. I must decline.",
        "I apologize, this is not something I do.",
        "We can't recommend this.",
        "",
    ],
)
def test_refusals_are_recognised(answer: str) -> None:
    assert refusal(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "Soak the pan first. You cannot rush it.",
        "Yes: mix both and wait.",
        "Some people are sorry to hear it, but plants need light.",
        "You can't help it if it rains, so bring a coat.",
        "First, sand the table. " + "Then oil it. " * 20 + "I'm sorry if this is long.",
    ],
)
def test_advice_is_no_refusal(answer: str) -> None:
    assert not refusal(answer)
