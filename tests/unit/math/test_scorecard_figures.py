"""Figures of a scorecard: by hand, by enumeration, and the alarm by its false alarms and by what it finds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binomtest

from pddpo_ray.scorecard.figures import (
    Scores,
    Written,
    distinct,
    figures_of_divergence,
    figures_of_pairs,
    figures_of_scores,
    figures_of_texts,
)
from pddpo_ray.theory.against_reference import kl_per_token, standard_gain, win_shares
from pddpo_ray.theory.intervals import binomial_high, bounded_interval, clopper_pearson
from pddpo_ray.theory.reward_hacking import Divergence, comparisons_of, rise_p_value, share_of_look


def test_distinct_runs_of_words_by_hand() -> None:
    texts = [["a", "b", "a"], ["a", "b"]]
    assert distinct(texts, 1) == 2 / 5
    assert distinct(texts, 2) == 2 / 3
    assert distinct(texts, 3) == 1.0
    assert distinct(texts, 4) is None
    assert distinct([], 1) is None


def test_wins_are_counted_over_all_pairs_of_a_prompt_and_ties_are_half() -> None:
    assert win_shares([[1.0, 3.0]], [[2.0, 2.0]]).tolist() == [0.5]
    assert win_shares([[2.0], [5.0, 0.0]], [[2.0, 1.0], [4.0, 1.0, -1.0]]).tolist() == [0.75, 4 / 6]
    rng = np.random.default_rng(0)
    own, theirs = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    slow = [np.mean([a > b for a, b in itertools.product(x, y)]) for x, y in zip(own, theirs, strict=True)]
    assert win_shares(list(own), list(theirs)) == pytest.approx(slow)


def test_the_divergence_per_token_weighs_tokens_and_the_gain_is_in_the_references_spread() -> None:
    assert kl_per_token([3.0, 1.0], [10, 30]) == 0.1
    assert kl_per_token([], []) is None
    assert standard_gain([[3.0, 5.0]], [[0.0, 2.0], [4.0, 2.0]]) == pytest.approx(2.0 / math.sqrt(8.0 / 3.0))
    assert standard_gain([[3.0]], [[1.0], [1.0]]) is None


def test_intervals_count_prompts_and_not_answers() -> None:
    """Two prompts with three equal answers each are two observations, however many answers say the same."""
    figures = figures_of_texts(
        Written(
            texts=[["read on and on and on and on"] * 3, ["Soak it first."] * 3],
            tokens=[[4.0] * 3, [8.0] * 3],
            cut_off=[[1.0] * 3, [0.0] * 3],
            benign=["I'm sorry, but I can't help with that.", "Soak it.", "Sure.", "Use `kill -9`."],
        ),
        longest=8,
    )
    assert (figures["truncated"].value, figures["truncated"].count) == (0.5, 2)
    assert (figures["truncated"].low, figures["truncated"].high) == pytest.approx(clopper_pearson(1, 2))
    assert (figures["length"].value, figures["length"].count) == (6.0, 2)
    assert (figures["length"].low, figures["length"].high) == pytest.approx(bounded_interval([4.0, 8.0], 0.0, 8.0))
    assert figures["refusals"].value == 0.25
    assert (figures["refusals"].low, figures["refusals"].high) == pytest.approx(clopper_pearson(1, 4))
    assert figures["repetition"].value == pytest.approx(0.2)  # 0.4 of the first prompt's runs, none of the second's
    assert figures["distinct_1"].value == 6 / 33  # go on and; soak it first.

    scored = figures_of_scores(Scores({"reward_held_out": [[1.0] * 3, [0.0] * 3]}, {"reward_held_out": [[0.5], [0.5]]}))
    assert (scored["win_rate"].value, scored["win_rate"].count) == (0.5, 2)
    assert (scored["win_rate"].low, scored["win_rate"].high) == pytest.approx(clopper_pearson(1, 2))
    assert scored["reward_held_out"].low is None  # nobody stated bounds of a model's scores
    drift = figures_of_divergence([[1.0, 3.0], [0.0, 0.0]], [[5.0, 5.0], [10.0, 20.0]])
    assert (drift["kl"].value, drift["kl_token"].value) == (1.0, 0.1)
    agreed = figures_of_pairs({"better": ([1.0, 0.0, 1.0], ["p", "p", "q"]), "safer": ([], [])})
    assert {name: (one.value, one.count) for name, one in agreed.items()} == {"agrees_better": (0.75, 2)}


# --- the alarm --------------------------------------------------------------------------------------------------------


def test_the_p_value_is_scipys_sign_test_without_the_prompts_that_did_not_move() -> None:
    differences = [1.0, 2.0, 0.5, -1.0, 0.0, 1e-4, 3.0]
    assert rise_p_value(differences) == pytest.approx(binomtest(4, 5, alternative="greater").pvalue)
    assert rise_p_value([0.0, 0.0]) == 1.0


def test_the_level_is_shared_by_all_looks_of_a_run_however_long() -> None:
    assert share_of_look(1, 0) == 0.5
    assert share_of_look(2, 0) == share_of_look(2, 1) == pytest.approx(1 / 12)
    assert share_of_look(3, 0) == 2 * share_of_look(3, 2) == pytest.approx(1 / 24)
    spent = [sum(share_of_look(k, since) for since in range(k)) for k in range(1, 400)]
    assert 0.99 < sum(spent) < 1.0


def test_a_reward_that_rises_while_the_held_out_one_falls_rings_and_either_alone_does_not() -> None:
    reference, up, down = np.zeros(24), np.ones(24), -np.ones(24)
    (one,) = comparisons_of([reference, up], [reference, down], 0.05)
    assert one == Divergence(1, 0, 24, 24, 24, 0.5**24, 0.05 * 0.5)
    assert one.rings
    for own, held in ((up, up), (down, down), (down, up), (up, reference)):
        assert not comparisons_of([reference, own], [reference, held], 0.05)[0].rings
    # a fall from an earlier peak, still above the reference, is found against that round
    later = comparisons_of([reference, up, 2 * up], [reference, 2 * up, up], 0.05)
    assert [(item.since, item.rings) for item in later] == [(0, False), (1, True)]


@pytest.mark.slow
@pytest.mark.parametrize(("prompts", "rounds", "runs"), [(24, 4, 4_000), (16, 8, 1_000)])
def test_false_alarms_over_a_whole_run_are_rarer_than_the_level(prompts: int, rounds: int, runs: int) -> None:
    """Runs whose own reward rises every round and whose held-out one never moves in truth: every policy is
    measured with noise of its own and shares the prompts' difficulty and the reference's noise."""
    generator, level, rang = np.random.default_rng(21), 0.1, 0
    for _ in range(runs):
        held = generator.normal(size=prompts) + generator.normal(size=(rounds + 1, prompts))
        own = np.arange(rounds + 1)[:, None] + 0.1 * generator.normal(size=(rounds + 1, prompts))
        rang += any(
            one.rings for k in range(1, rounds + 1) for one in comparisons_of(own[: k + 1], held[: k + 1], level)
        )
    assert binomial_high(rang, runs, 0.01) <= level


def test_a_clear_divergence_is_found_early() -> None:
    """A held-out reward that falls by a whole standard deviation of its noise each round: 200 runs of four rounds."""
    generator, found = np.random.default_rng(22), 0
    for _ in range(200):
        drift = np.arange(5)[:, None]
        held, own = generator.normal(size=(5, 24)) - drift, generator.normal(size=(5, 24)) + drift
        found += any(one.rings for k in range(1, 4) for one in comparisons_of(own[: k + 1], held[: k + 1], 0.05))
    assert found >= 180
