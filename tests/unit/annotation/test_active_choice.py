"""Which pairs are worth a person's time: the most informative by an independent computation, and a random share."""

from __future__ import annotations

import numpy as np
import pytest

from pddpo_ray.config import load
from pddpo_ray.exploration.explorer import OptimisticExplorer, choose_pairs
from pddpo_ray.records import Pair, Prompt, Response

ROWS = np.random.default_rng(4).normal(size=(30, 5))
RIDGE = 0.5


class Design:
    """Norms by solving with the matrix itself, pick after pick."""

    def __init__(self) -> None:
        self.matrix = RIDGE * np.eye(5)

    def norms(self) -> np.ndarray:
        return np.sqrt(np.einsum("nq,nq->n", ROWS, np.linalg.solve(self.matrix, ROWS.T).T))

    def picked(self, place: int) -> None:
        self.matrix = self.matrix + np.outer(ROWS[place], ROWS[place])


def test_the_random_share_is_kept_and_the_rest_is_the_greedy_choice() -> None:
    design = Design()
    chosen = choose_pairs(
        design.norms, design.picked, 30, keep=10, random_share=0.3, generator=np.random.default_rng(8)
    )
    drawn = np.random.default_rng(8).choice(30, size=3, replace=False).tolist()
    expected, matrix = list(drawn), RIDGE * np.eye(5) + ROWS[drawn].T @ ROWS[drawn]
    while len(expected) < 10:
        worth = [row @ np.linalg.inv(matrix) @ row if n not in expected else -1 for n, row in enumerate(ROWS)]
        expected.append(int(np.argmax(worth)))
        matrix = matrix + np.outer(ROWS[expected[-1]], ROWS[expected[-1]])
    assert chosen == sorted(expected)


def test_chosen_pairs_teach_more_than_random_ones() -> None:
    """Log determinant of the design after ten pairs, over fifty draws of the random share."""
    active: list[float] = []
    even: list[float] = []
    for seed in range(50):
        for share, found in ((0.2, active), (1.0, even)):
            design = Design()
            generator = np.random.default_rng([seed, 1])
            choose_pairs(design.norms, design.picked, 30, keep=10, random_share=share, generator=generator)
            found.append(float(np.linalg.slogdet(design.matrix)[1]))
    assert np.mean(active) > np.mean(even) + 1.0


def test_every_pair_can_be_asked_about() -> None:
    counts = np.zeros(30)
    for seed in range(300):
        design = Design()
        generator = np.random.default_rng([seed, 2])
        counts[choose_pairs(design.norms, design.picked, 30, keep=8, random_share=0.25, generator=generator)] += 1
    assert counts.min() > 0


def test_all_pairs_stay_when_there_are_no_more_than_wanted() -> None:
    design = Design()
    generator = np.random.default_rng(0)
    assert choose_pairs(design.norms, design.picked, 4, keep=9, random_share=0.5, generator=generator) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="random_share"):
        choose_pairs(design.norms, design.picked, 4, keep=2, random_share=0.0, generator=generator)


def test_the_explorer_prefers_pairs_about_which_nothing_is_known() -> None:
    """Answers with one-hot features: what was compared often is left to those that nobody has seen."""
    prompt = Prompt("p", (0,), "p")
    answers = [Response(f"a{n}", prompt, (n,), f"answer {n}", 1, n) for n in range(8)]

    def features(items: object) -> np.ndarray:
        return np.stack([np.eye(8)[item.token_ids[0]] for item in items])  # type: ignore[attr-defined]

    explorer = OptimisticExplorer(
        features=features, baseline={"p": answers[:4]}, beta=0.1, multiplier=lambda: 1.0, seed=3, bonus="elliptical"
    )
    known = [Pair(f"old-{n}", answers[n % 2], answers[2 + n % 2]) for n in range(400)]
    explorer.update(known)
    pairs = [Pair(f"new-{n}", answers[n % 2], answers[2 + n % 2]) for n in range(6)]
    pairs += [Pair(f"rare-{n}", answers[4 + n], answers[5 + n]) for n in range(3)]
    chosen = explorer.select(pairs, 4, 0.25)
    assert [pair.id for pair in chosen][-3:] == ["rare-0", "rare-1", "rare-2"]
    assert [pair.id for pair in explorer.select(pairs, 4, 0.25)] == [pair.id for pair in chosen]
    assert explorer.select(pairs, 20, 0.25) == pairs


def test_a_recipe_that_keeps_some_pairs_plans_with_as_many() -> None:
    config = load("tabular", ["explore.keep=20"])
    assert config.pairs_per_round == 20
    assert load("tabular", ["explore.keep=1000"]).pairs_per_round == 32
