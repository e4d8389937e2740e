"""Agreement against published examples, NLTK and a definition written out pair by pair; flags against simulations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.metrics.agreement import AnnotationTask

from pddpo_ray.annotation.review.quality import (
    alpha_interval,
    krippendorff_alpha,
    leave_one_out,
    pairwise_agreement,
    share_with_interval,
)

# Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011): two observers with binary
# data, four observers with data missing.
TWO_OBSERVERS = ["0100000010", "1110010000"]
FOUR_OBSERVERS = ["123321412...", "1233224125.3", ".3332342251.", "12332441251."]


def units(rows: list[str]) -> list[list[str]]:
    return [[label for label in column if label != "."] for column in zip(*rows, strict=True)]


def by_definition(items: list[list[int]]) -> float:
    """1 - D_o/D_e from all ordered pairs of labels, item by item and over all items."""
    kept = [labels for labels in items if len(labels) > 1]
    everything = [label for labels in kept for label in labels]
    n = len(everything)
    observed = sum((a != b) / (len(labels) - 1) for labels in kept for a, b in itertools.permutations(labels, 2)) / max(
        n, 1
    )
    expected = sum(a != b for a, b in itertools.permutations(everything, 2)) / max(n * (n - 1), 1)
    return 1 - observed / expected if expected else math.nan


def test_alpha_equals_the_published_worked_examples() -> None:
    assert krippendorff_alpha(units(TWO_OBSERVERS)) == pytest.approx(0.095, abs=5e-4)
    assert krippendorff_alpha(units(FOUR_OBSERVERS)) == pytest.approx(0.743, abs=5e-4)


def by_nltk(items: list[list[str]]) -> float:
    """NLTK's alpha of the same labels; who gave them does not matter to it, only that no one answers an item twice."""
    triples = [(f"coder {n}", f"item {i}", label) for i, labels in enumerate(items) for n, label in enumerate(labels)]
    return float(AnnotationTask(data=triples).alpha())


@pytest.mark.parametrize("seed", range(40))
def test_alpha_equals_that_of_nltk(seed: int) -> None:
    """Two to six people, two to four labels, items with labels missing."""
    rng = np.random.default_rng([seed, 31])
    people, labels = int(rng.integers(2, 7)), "abcd"[: int(rng.integers(2, 5))]
    rows = ["".join("." if rng.random() < 0.3 else str(rng.choice(list(labels))) for _ in range(25))]
    rows += ["".join(rows[0][i] if rng.random() < 0.6 else rng.choice(list(labels + ".")) for i in range(25))
             for _ in range(people - 1)]  # fmt: skip
    assert krippendorff_alpha(units(rows)) == pytest.approx(by_nltk(units(rows)))


def test_nltk_agrees_on_the_published_examples() -> None:
    for rows in (TWO_OBSERVERS, FOUR_OBSERVERS):
        assert krippendorff_alpha(units(rows)) == pytest.approx(by_nltk(units(rows)))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=8))
def test_alpha_equals_its_definition_pair_by_pair(items: list[list[int]]) -> None:
    assert krippendorff_alpha(items) == pytest.approx(by_definition(items), nan_ok=True)


def test_alpha_is_one_when_all_agree_and_below_zero_when_all_differ() -> None:
    assert krippendorff_alpha(["aa", "bb", "aa"]) == 1
    assert krippendorff_alpha(["ab", "ba", "ab"]) < 0
    assert math.isnan(krippendorff_alpha(["aa", "aa"]))
    assert math.isnan(krippendorff_alpha(["a"]))


def test_pairwise_agreement_by_hand() -> None:
    """aab: 1 pair of 3 agrees; bb: 1 of 1; c: no pair. 2 of 4."""
    assert pairwise_agreement(["aab", "bb", "c"]) == 0.5
    assert math.isnan(pairwise_agreement(["c"]))


@pytest.mark.slow
def test_the_interval_of_alpha_covers_the_truth_about_as_often_as_it_says() -> None:
    """Two people, labels equal with chance 0.8 and fair otherwise: alpha tends to 0.8 * 1 + 0.2 * 0 = 0.8."""
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng([seed, 1])
        one = rng.integers(0, 2, 150)
        two = np.where(rng.random(150) < 0.8, one, rng.integers(0, 2, 150))
        low, high = alpha_interval(list(zip(one.tolist(), two.tolist(), strict=True)), resamples=200, seed=seed)
        covered += low <= 0.8 <= high
    assert 88 <= covered <= 100
    assert all(math.isnan(end) for end in alpha_interval(["ab"]))


def test_the_permutation_test_is_exact_on_a_case_by_hand() -> None:
    """Two items with labels {a: x, b: y, c: y}. Under exchangeability a agrees with nobody with chance 1/3 each."""
    agreement = leave_one_out([{"a": 0, "b": 1, "c": 1}] * 2, "a")
    assert agreement.p_value == pytest.approx(1 / 9)
    assert (agreement.answers, agreement.agreement) == (2, 0)
    assert agreement.expected == pytest.approx(2 / 3 * 1 / 2)
    assert leave_one_out([{"b": 1, "c": 1}], "a").p_value == 1.0


def test_share_with_interval_by_hand() -> None:
    """Exact at 5 of 10: at the lower end five or more, at the upper end five or fewer have probability 2.5 %."""
    share, low, high = share_with_interval(5, 10)
    assert share == 0.5
    ways = [math.comb(10, count) for count in range(11)]
    at_low = sum(ways[count] * low**count * (1 - low) ** (10 - count) for count in range(5, 11))
    at_high = sum(ways[count] * high**count * (1 - high) ** (10 - count) for count in range(6))
    assert [at_low, at_high] == pytest.approx([0.025, 0.025], abs=1e-9)
    assert share_with_interval(0, 0)[1:] == (0.0, 1.0)
