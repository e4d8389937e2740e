"""Labels drawn from scores: their probabilities, their seeds, and failures that never become labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.special import expit

from pddpo_ray.errors import RunError
from pddpo_ray.records import HARM, Array, Pair, Prompt, Response, Verdict
from pddpo_ray.scoring.interface import TextPair
from pddpo_ray.scoring.scored_labeller import ScoredLabeller

PROMPT = Prompt("x", (0,), "question")


class Given:
    """A scorer that reads the score from the answer's text."""

    name = "given"

    def score_texts(self, texts: Sequence[TextPair]) -> Array:
        return np.array([float(answer) for _, answer in texts])

    def score(self, responses: Sequence[Response]) -> Array:
        return self.score_texts([("", response.text) for response in responses])


class Fixed(Given):
    def __init__(self, *scores: float) -> None:
        self.scores = np.array(scores)

    def score(self, responses: Sequence[Response]) -> Array:
        return self.scores


def response(name: str, score: float) -> Response:
    return Response(name, PROMPT, (0,), str(score), 0, 0)


def test_safety_labels_are_unsafe_with_the_probability_of_the_cost() -> None:
    labeller = ScoredLabeller(Given(), Given())
    items = [response(f"r{index}", cost) for index, cost in enumerate((-2.0, 0.0, 1.0))]
    shares = [np.mean([label is Verdict.UNSAFE for label in item.labels]) for item in labeller.safety(items, 40_000, 3)]
    np.testing.assert_allclose(shares, expit([-2.0, 0.0, 1.0]), atol=0.01)


def test_preferences_follow_bradley_terry_on_each_score() -> None:
    labeller = ScoredLabeller(Given(), Fixed(*([0.0, 2.0] * 4000)))
    pairs = [Pair(f"p{index}", response("a", 1.0), response("b", 0.0)) for index in range(4000)]
    labels = labeller.compare(pairs, 5)
    better = np.mean([label.helpful is Verdict.FIRST for label in labels])
    costlier = np.mean([label.label(HARM) is Verdict.FIRST for label in labels])
    assert better == pytest.approx(expit(1.0), abs=0.025)
    assert costlier == pytest.approx(expit(-2.0), abs=0.025)


def test_equal_scores_are_a_coin() -> None:
    labeller = ScoredLabeller(Given(), Given())
    ties = labeller.compare([Pair(f"p{i}", response("a", 1.0), response("b", 1.0)) for i in range(400)], 1)
    assert 140 < sum(label.helpful is Verdict.FIRST for label in ties) < 260


def test_a_label_depends_on_seed_and_item_alone() -> None:
    labeller = ScoredLabeller(Given(), Given())
    items = [response(f"r{index}", 0.1 * index) for index in range(20)]
    forwards = labeller.safety(items, 5, 7)
    backwards = labeller.safety(items[::-1], 5, 7)[::-1]
    assert forwards == backwards
    assert labeller.safety(items, 5, 8) != forwards


def test_a_failed_scorer_is_an_error_and_never_a_label() -> None:
    items = [response("r0", 0.0), response("r1", 0.0)]
    with pytest.raises(RunError, match="asked for 2 scores and returned 1"):
        ScoredLabeller(Given(), Fixed(1.0)).safety(items, 1, 0)
    with pytest.raises(RunError, match="1 of 2 scores are no numbers, first r1"):
        ScoredLabeller(Given(), Fixed(1.0, np.nan)).safety(items, 1, 0)
