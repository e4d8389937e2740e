"""Ratings from comparisons: Bradley-Terry by maximum likelihood with bootstrap intervals, and the iterative Elo.

Ratings are on Elo's scale: 400 points are odds of ten to one. The anchor (the reference) has 1000 by definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pddpo_ray.records import Array
from pddpo_ray.theory.agreement import agreement
from pddpo_ray.theory.logistic import most_probable

SCALE = 400.0 / np.log(10.0)
"""Points per logit."""
ANCHOR = 1000.0


@dataclass(frozen=True)
class Comparison:
    """One verdict on two models' answers to one prompt. `outcome` is 1 if the first won, 0 if it lost, 0.5 a draw."""

    first: str
    second: str
    outcome: float
    prompt: str


@dataclass(frozen=True)
class Rating:
    """A model's rating. The interval is None for the anchor, which has none, and where it was not asked for."""

    value: float
    low: float | None = None
    high: float | None = None


def bradley_terry(models: Sequence[str], wins: Array, anchor: str, ridge: float = 1e-3) -> dict[str, float]:
    """Ratings that make the comparisons most likely. wins[i, j]: how often i beat j, draws as halves. [m, m]

    The ridge on logits keeps the rating of a model that won or lost everything finite.
    """
    winners, losers = np.nonzero(wins)
    identity = np.eye(len(models))
    theta = most_probable(identity[winners] - identity[losers], ridge, wins[winners, losers])
    theta = theta - theta[list(models).index(anchor)]
    return {model: float(ANCHOR + SCALE * value) for model, value in zip(models, theta, strict=True)}


def win_table(models: Sequence[str], comparisons: Sequence[Comparison]) -> Array:
    """Wins of each model over each other, a draw being half a win for both. -> [m, m]"""
    indices = {model: index for index, model in enumerate(models)}
    wins = np.zeros((len(models), len(models)))
    for item in comparisons:
        i, j = indices[item.first], indices[item.second]
        wins[i, j] += item.outcome
        wins[j, i] += 1.0 - item.outcome
    return wins


def ratings(
    models: Sequence[str], comparisons: Sequence[Comparison], anchor: str, *, resamples: int = 200, seed: int = 0
) -> dict[str, Rating]:
    """Bradley-Terry ratings with 95 % intervals from a bootstrap over prompts.

    All verdicts on a prompt are drawn together: the answers of one prompt share its difficulty.
    """
    best = bradley_terry(models, win_table(models, comparisons), anchor)
    by_prompt: dict[str, list[Comparison]] = {}
    for item in comparisons:
        by_prompt.setdefault(item.prompt, []).append(item)
    tables = np.stack([win_table(models, items) for items in by_prompt.values()])
    generator = np.random.default_rng([seed, 301])
    drawn = []
    for _ in range(resamples):
        chosen = generator.integers(len(tables), size=len(tables))
        drawn.append(list(bradley_terry(models, tables[chosen].sum(axis=0), anchor).values()))
    if not drawn:
        return {model: Rating(value) for model, value in best.items()}
    low, high = np.percentile(np.array(drawn), [2.5, 97.5], axis=0)
    return {
        model: Rating(best[model]) if model == anchor else Rating(best[model], float(low[index]), float(high[index]))
        for index, model in enumerate(models)
    }


def iterative_elo(
    models: Sequence[str],
    comparisons: Sequence[Comparison],
    anchor: str,
    *,
    shuffles: int = 50,
    epochs: int = 10,
    k: float = 32.0,
    start: float = 1200.0,
    seed: int = 0,
) -> dict[str, Rating]:
    """The Elo that published tables use (docs/evaluation.md): one game at a time, averaged over shuffled orders.

    At the end ratings are *multiplied* so that the anchor has 1000, as there; their intervals hold the middle 95 % of
    the shuffles, which says how much the order matters and nothing about the number of comparisons.
    """
    indices = {model: index for index, model in enumerate(models)}
    games = [(indices[item.first], indices[item.second], item.outcome) for item in comparisons]
    generator = np.random.default_rng([seed, 302])
    ends = []
    for _ in range(shuffles):
        points = np.full(len(models), start)
        for _ in range(epochs):
            for game in generator.permutation(len(games)):
                i, j, outcome = games[game]
                expected = 1.0 / (1.0 + 10.0 ** ((points[j] - points[i]) / 400.0))
                points[i] += k * (outcome - expected)
                points[j] -= k * (outcome - expected)
        ends.append(points * ANCHOR / points[indices[anchor]])
    table = np.array(ends)
    low, high = np.percentile(table, [2.5, 97.5], axis=0)
    return {
        model: Rating(float(table[:, index].mean()), float(low[index]), float(high[index]))
        for index, model in enumerate(models)
    }


def comparisons_by_score(prompts: Sequence[str], scores: dict[str, Array]) -> list[Comparison]:
    """Every two models compared by a scorer on the same prompts; ties are draws."""
    names = list(scores)
    return [
        Comparison(first, second, agreement(float(scores[first][row] - scores[second][row])), prompt)
        for index, first in enumerate(names)
        for second in names[index + 1 :]
        for row, prompt in enumerate(prompts)
    ]
