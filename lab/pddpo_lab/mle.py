"""Maximum likelihood of Bradley-Terry scores in a box, everywhere that scores are fitted (paper.md §4).

    minimise over |theta| <= z:   sum of w_i softplus(-(a_i . theta + m_i)) + ridge/2 ||theta||^2

- `box_mle`: a score for every answer of a table, a_i = e(winner) - e(loser). Many tables at once, by Newton's method.
- `bounded_logistic`: scores that are linear in any features, with a margin for every row.
- `unbounded_logistic`: the same without a box, by Newton's method. With a ridge of 1/s^2 these are the most probable
  weights under a normal prior of standard deviation s.
- `optimistic_mle`: a table's cost scores with the XPO-style term (paper.md §13).

Scores that no pair mentions and each prompt's common shift are not determined by data; the ridge picks the smallest
ones (paper.md erratum 14).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_softmax

from pddpo_ray.records import Array

Indices = NDArray[np.int64]

RIDGE = 1e-4
"""Weight of the tie-break against the *sum* of pair losses (1e-4 / n against their mean)."""

SOLVED = 1e-8
"""Largest slope of the mean loss at which `unbounded_logistic` calls a fit solved."""

PAIRS_PER_RIDGE = 1e7
"""Largest weight of the data against the ridge."""


def win_counts(
    prompts: Indices, winners: Indices, losers: Indices, *, shape: tuple[int, int], weights: Array | float = 1.0
) -> Array:
    """wins[x, i, j] = (weighted) pairs of prompt x in which answer i beat answer j. [n], [n], [n] -> [X, Y, Y]

    For rewards the winner is the better answer, for costs the *costlier* one: scores grow with what wins.
    """
    prompt_count, answer_count = shape
    wins = np.zeros((prompt_count, answer_count, answer_count))
    np.add.at(wins, tuple(np.asarray(part, dtype=np.int64) for part in (prompts, winners, losers)), weights)
    return wins


def box_mle(
    wins: Array,
    bound: float,
    *,
    offsets: Array | None = None,
    start: Array | None = None,
    ridge: float = RIDGE,
    tolerance: float = 1e-9,
    iterations: int = 200,
) -> Array:
    """Scores in [-bound, bound] of every problem, by projected Newton steps. wins [..., Y, Y] -> [..., Y]

    `offsets[..., i, j]` is subtracted from s_i - s_j (a bonus inside the printed loss; None: 0). `start` is a warm
    start. Newton's step is taken in the coordinates that are free or move inwards, and is halved along the projected
    arc until the objective falls enough (Bertsekas 1982); a problem is finished when its projected gradient is below
    `tolerance` relative to its number of pairs.
    """
    problems = wins.reshape(-1, *wins.shape[-2:])
    # beyond 1e7 pairs the ridge would drown in rounding and leave the common shift undetermined: weigh pairs less
    problems = problems / np.maximum(1.0, problems.sum(axis=(1, 2), keepdims=True) / PAIRS_PER_RIDGE)
    shift = np.zeros_like(problems) if offsets is None else offsets.reshape(problems.shape)
    scores = (
        np.zeros(problems.shape[:2]) if start is None else np.clip(start, -bound, bound).reshape(problems.shape[:2])
    )
    scores = scores.copy()
    scale = 1.0 + problems.sum(axis=(1, 2))
    open_problems = np.arange(len(problems))
    for _ in range(iterations):
        left = _newton_step(scores, problems, shift, bound, ridge, scale, open_problems, tolerance)
        if left.size == 0:
            break
        open_problems = left
    return scores.reshape(wins.shape[:-1])


def negative_log_likelihood(scores: Array, wins: Array, offsets: Array | float = 0.0, ridge: float = RIDGE) -> Array:
    """Objective of each problem. [..., Y], [..., Y, Y] -> [...]"""
    difference = scores[..., :, None] - scores[..., None, :] - offsets
    return np.sum(wins * np.logaddexp(0.0, -difference), axis=(-2, -1)) + 0.5 * ridge * np.sum(scores**2, axis=-1)


def gradient(scores: Array, wins: Array, offsets: Array | float = 0.0, ridge: float = RIDGE) -> Array:
    """Gradient of the objective in the scores. -> [..., Y]"""
    pull = wins * expit(-(scores[..., :, None] - scores[..., None, :] - offsets))
    return np.asarray(pull.sum(axis=-2) - pull.sum(axis=-1) + ridge * scores)


def _newton_step(
    scores: Array,
    wins: Array,
    offsets: Array,
    bound: float,
    ridge: float,
    scale: Array,
    indices: Indices,
    tolerance: float,
) -> Indices:
    """One step of the unfinished problems, written into `scores`; returns the problems that are still unfinished."""
    here, data, shift = scores[indices], wins[indices], offsets[indices]
    slope = gradient(here, data, shift, ridge)
    # a coordinate at its bound whose gradient pushes outwards stays there
    held = ((here >= bound) & (slope < 0)) | ((here <= -bound) & (slope > 0))
    residual = np.abs(np.where(held, 0.0, slope)).max(axis=1)
    active = residual > tolerance * scale[indices]
    if not active.any():
        return indices[:0]
    indices, here, data, shift, slope, held = (part[active] for part in (indices, here, data, shift, slope, held))
    direction = np.linalg.solve(_hessian(here, data, shift, ridge, held), -np.where(held, 0.0, slope)[..., None])[
        ..., 0
    ]
    scores[indices] = _search(here, direction, slope, data, shift, bound, ridge)
    return indices


def _hessian(scores: Array, wins: Array, offsets: Array, ridge: float, held: NDArray[np.bool_]) -> Array:
    """Hessian with held coordinates decoupled (identity rows). -> [B, Y, Y]"""
    chance = expit(scores[:, :, None] - scores[:, None, :] - offsets)
    curvature = wins * chance * (1.0 - chance)
    curvature = curvature + np.swapaxes(curvature, 1, 2)
    size = scores.shape[1]
    matrix = np.eye(size) * (curvature.sum(axis=2) + ridge)[:, :, None] - curvature
    free = ~held
    matrix *= free[:, :, None] & free[:, None, :]
    return np.asarray(matrix + np.eye(size) * held[:, :, None])


def _search(
    here: Array, direction: Array, slope: Array, wins: Array, offsets: Array, bound: float, ridge: float
) -> Array:
    """Halves the step along the projected arc until the objective falls by a share of what the slope promises."""
    before = negative_log_likelihood(here, wins, offsets, ridge)
    step = np.ones(len(here))
    result = here.copy()
    waiting = np.ones(len(here), dtype=bool)
    for _ in range(40):
        trial = np.clip(here + step[:, None] * direction, -bound, bound)
        promised = np.sum(slope * (here - trial), axis=1)
        fallen = before - negative_log_likelihood(trial, wins, offsets, ridge)
        # rounding of a large objective hides the last, tiny decreases; they are accepted
        accepted = waiting & (fallen >= 1e-4 * promised - 1e-13 * np.abs(before))
        result[accepted] = trial[accepted]
        waiting &= ~accepted
        if not waiting.any():
            break
        step = np.where(waiting, 0.5 * step, step)
    return result


def bounded_logistic(
    rows: Array,
    *,
    margins: Array | None = None,
    weights: Array | None = None,
    bound: float | None = None,
    ridge: float = RIDGE,
) -> Array:
    """Minimiser theta of the loss above; no row gives zeros. rows [n, p], margins [n], weights [n] -> [p]"""
    objective = _logistic(rows, margins, weights, ridge)
    start = np.zeros(rows.shape[1])
    return _minimise(objective.loss_and_slope, start, bound, maxiter=5000, maxfun=10000, ftol=1e-15, gtol=1e-10)


def unbounded_logistic(
    rows: Array,
    *,
    ridge: float,
    margins: Array | None = None,
    weights: Array | None = None,
    tolerance: float = 1e-12,
    iterations: int = 200,
) -> Array:
    """Minimiser theta without a box. rows [n, p], margins [n], weights [n] -> [p]

    Newton's steps, halved until the loss falls enough, until the slope of the mean loss is at most `tolerance`.
    Raises ArithmeticError where rounding stops them at a slope above 1e-8.
    """
    objective = _logistic(rows, margins, weights, ridge)
    theta = np.zeros(rows.shape[1])
    for _ in range(iterations):
        loss, slope = objective.loss_and_slope(theta)
        if np.abs(slope).max(initial=0.0) <= tolerance:
            break
        following = _newton_arc(objective, theta, loss, slope)
        if np.array_equal(following, theta):
            break
        theta = following
    left = float(np.abs(objective.loss_and_slope(theta)[1]).max(initial=0.0))
    if not left <= SOLVED:
        raise ArithmeticError(f"a logistic fit of {len(rows)} rows stopped at slope {left:.2g}, above {SOLVED:g}")
    return theta


@dataclass(frozen=True, eq=False)
class _Logistic:
    """The objective divided by the data's weight, so that a tolerance means the same for few rows and for many."""

    rows: Array
    margins: Array
    mass: Array
    ridge: float
    scale: float

    def loss_and_slope(self, theta: Array) -> tuple[float, Array]:
        """-> [], [p]"""
        logits = self.rows @ theta + self.margins
        loss = float(self.mass @ np.logaddexp(0.0, -logits)) + 0.5 * self.ridge * float(theta @ theta)
        slope = self.ridge * theta - self.rows.T @ (self.mass * expit(-logits))
        return self.scale * loss, self.scale * slope

    def curvature(self, theta: Array) -> Array:
        """[p, p]"""
        wrong = expit(-(self.rows @ theta + self.margins))
        weighed = self.rows * (self.mass * wrong * (1.0 - wrong))[:, None]
        return self.scale * (self.rows.T @ weighed + self.ridge * np.eye(len(theta)))


def _logistic(rows: Array, margins: Array | None, weights: Array | None, ridge: float) -> _Logistic:
    mass = np.ones(len(rows)) if weights is None else weights
    scale = 1.0 / max(1.0, float(mass.sum()))
    return _Logistic(rows, np.zeros(len(rows)) if margins is None else margins, mass, ridge, scale)


def _newton_arc(objective: _Logistic, theta: Array, loss: float, slope: Array) -> Array:
    """The longest of Newton's step and its halves that lowers the loss enough; theta itself where none does."""
    direction = np.linalg.solve(objective.curvature(theta), -slope)
    promised = -float(slope @ direction)
    for halving in range(40):
        share = 0.5**halving
        trial = theta + share * direction
        # close to the minimum the decrease drowns in rounding; Newton's own step is right there
        if loss - objective.loss_and_slope(trial)[0] >= 1e-4 * share * promised - 1e-15 * max(1.0, abs(loss)):
            return trial
    return theta


def optimistic_mle(
    wins: Array, bound: float, *, log_base: Array, temperature: float, answers: Array, alpha: float
) -> Array:
    """Cost scores in [-bound, bound]. wins [X, Y, Y] (costlier first), log base [X, Y], answers [X, Y] -> [X, Y]

    minimise   box MLE's objective + alpha * pairs * mean over the baseline's answers of log policy_c(y'|x),
    policy_c proportional to base * exp(-c / temperature)

    The term is concave in c, so this is the minimum that is reached downhill from the likelihood's own maximum.
    `answers` are the baseline's shares (they sum to 1 over all prompts). At alpha = 0 this is the box MLE.
    """
    start = box_mle(wins, bound)
    if alpha == 0:
        return start
    flat = _minimise(
        lambda flat: _value_and_slope(flat.reshape(start.shape), wins, log_base, temperature, answers, alpha),
        start.ravel(), bound, ftol=0.0, gtol=1e-9, maxiter=2000, maxfun=4000, maxcor=20,
    )  # fmt: skip
    return flat.reshape(start.shape)


def _value_and_slope(
    scores: Array, wins: Array, log_base: Array, temperature: float, answers: Array, alpha: float
) -> tuple[float, Array]:
    """Objective and its gradient. -> [], [X Y]"""
    weight = alpha * wins.sum()
    log_policy = log_softmax(log_base - scores / temperature, axis=1)
    given = answers > 0  # elsewhere the policy may be 0, and 0 times its logarithm is no number
    term = float(np.sum(answers[given] * log_policy[given]))
    value = float(negative_log_likelihood(scores, wins).sum()) + weight * term
    pull = (answers.sum(axis=1, keepdims=True) * np.exp(log_policy) - answers) / temperature
    return value, (gradient(scores, wins, ridge=RIDGE) + weight * pull).ravel()


def _minimise(
    loss_and_slope: Callable[[Array], tuple[float, Array]], start: Array, bound: float | None, **options: Any
) -> Array:
    """Minimiser in the box by L-BFGS-B. [p] -> [p]"""
    limits = None if bound is None else [(-bound, bound)] * start.size
    return np.asarray(minimize(loss_and_slope, start, jac=True, method="L-BFGS-B", bounds=limits, options=options).x)
