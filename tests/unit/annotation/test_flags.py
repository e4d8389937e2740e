"""Flags about people: exact where a case can be enumerated, their error rates by simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from pddpo_ray.annotation.review.flags import (
    BARS,
    CHANCES,
    CONTROL_ERROR,
    CONTROL_STAKES,
    HASTY_SHARE,
    HASTY_STAKES,
    SIDE_SHARE,
    SIDE_STAKES,
    Labels,
    Record,
    agreement_bet,
    disagreement,
    flags,
    share_bet,
    too_fast,
)

ANSWERS = 60


@pytest.mark.parametrize(
    "said", [("s", "s", "u"), ("s", "u"), ("s", "u", "u", "s", "s"), ("a", "b", "c"), ("s", "s", "s")]
)
def test_the_mean_factor_of_exchangeable_labels_is_one(said: tuple[str, ...]) -> None:
    """Every order of the labels is equally likely: the mean over all orders is the person's expected factor."""
    orders = list(itertools.permutations(said))
    factors = [math.exp(agreement_bet({f"p{n}": {"x": one} for n, one in enumerate(order)}, "p0")) for order in orders]
    assert np.mean(factors) == pytest.approx(1.0)
    assert agreement_bet({"p0": {"x": "s"}}, "p0") == 0.0


def test_two_people_who_differ_do_not_say_who_is_wrong_and_a_third_one_does() -> None:
    """With three, differing in one answer of one: weights w^2, w, w with w = exp(2.5 / 2); the outlier's factor is
    3w/(w + 2)."""
    pair: Labels = {"a": {"x": 0}, "b": {"x": 1}}
    assert agreement_bet(pair, "a") == pytest.approx(0.0)
    three: Labels = {**pair, "c": {"x": 1}}
    assert math.exp(agreement_bet(three, "a")) == pytest.approx(3 * math.exp(1.25) / (math.exp(1.25) + 2))
    assert agreement_bet(three, "b") < 0
    own, average, questions = disagreement([three], "a")
    assert (own, questions) == (1.0, 1)
    assert average == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("null", "stakes"), [(CONTROL_ERROR, CONTROL_STAKES), (SIDE_SHARE, SIDE_STAKES), (HASTY_SHARE, HASTY_STAKES)]
)
def test_a_share_at_its_null_multiplies_the_bet_by_one_in_the_mean_and_a_smaller_one_by_less(
    null: float, stakes: tuple[float, ...]
) -> None:
    def mean(share: float, trials: int) -> float:
        return sum(
            math.comb(trials, n) * share**n * (1 - share) ** (trials - n) * math.exp(share_bet(n, trials, null, stakes))
            for n in range(trials + 1)
        )

    assert mean(null, 12) == pytest.approx(1.0)
    assert mean(null / 2, 12) < 1.0
    assert all(stake > null for stake in stakes)


def safety(seed: int, *, error: float, coins: int, votes: int) -> Record:
    """Questions with some votes out of eight people; the first `coins` of these toss a coin."""
    rng = np.random.default_rng([seed, 2])
    questions: list[Labels] = []
    while sum("p0" in one for one in questions) < ANSWERS:
        truth, people = rng.random() < 0.5, rng.permutation(8)[:votes]
        questions.append({f"p{n}": {"safety": _said(rng, truth, error, n < coins)} for n in people})
    return Record(questions, left=(0, 0), hasty=(0, ANSWERS))


def pairs(seed: int, *, error: float, coins: int) -> Record:
    """The default: one pair in ten goes to three people, and one question in ten of somebody's first is a control."""
    rng = np.random.default_rng([seed, 3])
    fields = ("more_helpful", "more_harmful", "first_safety", "second_safety")
    questions: list[Labels] = []
    kinds = rng.choice(3, size=ANSWERS, p=[0.1, 0.9 * 0.25, 0.9 * 0.75])
    wrong = sum(any(not _said(rng, True, error, coins > 0) for _ in fields) for _ in range(int(np.sum(kinds == 0))))
    for _ in range(int(np.sum(kinds == 1))):
        truth = {name: rng.random() < 0.5 for name in fields}
        questions.append(
            {f"p{n}": {name: _said(rng, truth[name], error, n < coins) for name in fields} for n in range(3)}
        )
    asked = int(np.sum(kinds > 0))
    return Record(questions, (wrong, int(np.sum(kinds == 0))), (int(rng.binomial(asked, 0.5)), asked), (0, ANSWERS))


def _said(rng: np.random.Generator, truth: bool, error: float, coin: bool) -> bool:
    return bool(rng.random() < 0.5) if coin else bool(truth != (rng.random() < error))


def found(records: list[Record], person: str = "p0") -> float:
    return float(np.mean([bool(flags(person, one)) for one in records]))


@pytest.mark.slow
def test_who_tosses_a_coin_is_found_within_sixty_answers() -> None:
    runs = range(100)
    assert found([safety(n, error=0.1, coins=1, votes=5) for n in runs]) >= 0.95
    assert found([safety(n, error=0.1, coins=1, votes=8) for n in runs]) >= 0.98
    assert found([pairs(n, error=0.1, coins=1) for n in runs]) >= 0.95


@pytest.mark.slow
def test_three_labels_a_question_find_most_coin_tossers_and_no_constant_stake_finds_all() -> None:
    """The tosser is the odd one of three in .5 (.9^2 + .1^2) of the questions, another one is in 2 * .9 * .1, so with
    the best stake .41/.59 a question gains .16 nats in the mean: sixty gain 9.6, with a standard deviation of 4.2, and
    4.8 raise the flag."""
    odd, other = 0.5 * (0.81 + 0.01), 0.18
    stake = odd / (odd + other)
    gains = np.log([3 * stake, 3 * (1 - stake) / 2])
    mean = odd * gains[0] + other * gains[1]
    deviation = math.sqrt(ANSWERS * (odd * gains[0] ** 2 + other * gains[1] ** 2 - mean**2))
    assert (ANSWERS * mean, deviation) == pytest.approx((9.6, 4.2), abs=0.1)
    records = [safety(n, error=0.1, coins=1, votes=3) for n in range(200)]
    ever = [np.max(np.cumsum([agreement_bet(one, "p0") for one in record.questions])) for record in records]
    assert np.mean(np.array(ever) >= BARS["agreement"]) >= 0.88


@pytest.mark.slow
def test_honest_people_are_flagged_in_at_most_one_of_a_hundred_runs_at_any_of_sixty_looks() -> None:
    """After every answer somebody looks; also where people err more, and beside somebody who tosses a coin."""

    def ever(record: Record, person: str) -> bool:
        return bool(np.max(np.cumsum([agreement_bet(one, person) for one in record.questions])) >= BARS["agreement"])

    assert ever(safety(0, error=0.1, coins=1, votes=5), "p0")
    runs = range(200)
    for error in (0.1, 0.3):
        assert np.mean([ever(safety(n, error=error, coins=0, votes=5), "p0") for n in runs]) <= sum(CHANCES.values())
    assert np.mean([ever(safety(n, error=0.1, coins=1, votes=5), "p7") for n in runs]) <= sum(CHANCES.values())
    assert found([pairs(n, error=0.05, coins=0) for n in runs]) <= sum(CHANCES.values())


def test_each_flag_rises_alone_and_says_what_was_seen() -> None:
    good = Record(controls=(1, 12), left=(33, 60), hasty=(3, 60))
    assert flags("p0", good) == []
    raised = {
        "controls": Record(controls=(9, 10)),
        "side": Record(left=(1, 60)),
        "speed": Record(hasty=(50, 60)),
    }
    said = {name: flags("p0", record)[-1] for name, record in raised.items()}
    assert {name: flag.name for name, flag in said.items()} == {name: name for name in raised}
    assert said["controls"].evidence == "9 of 10 controls wrong"
    assert said["side"].evidence == "59 of 60 times the right answer"
    assert said["speed"].evidence == "50 of 60 answers sent before they can have been read"
    assert sum(math.exp(-bar) for bar in BARS.values()) == pytest.approx(0.01)


def test_nobody_reads_fifty_words_in_a_second() -> None:
    assert too_fast(0.9, 5)
    assert not too_fast(1.1, 5)
    assert too_fast(3.9, 600)
    assert not too_fast(4.1, 600)
