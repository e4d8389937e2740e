"""Box maximum likelihood of cost scores with the XPO-style term, for tables (paper.md §4, §13).

    minimise over |c| <= z:   sum over pairs softplus(-(c[costlier] - c[cheaper])) + ridge/2 ||c||^2
                              + alpha * pairs * mean over the baseline's answers of log policy_c(y'|x),
    policy_c proportional to base * exp(-c / temperature)

The term is concave in c, so this is the minimum that is reached downhill from the likelihood's own maximum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

from pddpo_ray.theory.box_mle import RIDGE, box_mle, gradient, negative_log_likelihood

Array = NDArray[np.float64]


def optimistic_mle(
    wins: Array, bound: float, *, log_base: Array, temperature: float, answers: Array, alpha: float
) -> Array:
    """Cost scores in [-bound, bound]. wins [X, Y, Y] (costlier first), log base [X, Y], answers [X, Y] -> [X, Y]

    `answers` are the baseline's shares (they sum to 1 over all prompts). At alpha = 0 this is the box MLE.
    """
    start = box_mle(wins, bound)
    if alpha == 0:
        return start
    found = minimize(
        lambda flat: _value_and_slope(flat.reshape(start.shape), wins, log_base, temperature, answers, alpha),
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-bound, bound)] * start.size,
        options={"ftol": 0.0, "gtol": 1e-9, "maxiter": 2000, "maxfun": 4000, "maxcor": 20},
    )
    return np.asarray(found.x.reshape(start.shape))


def _value_and_slope(
    scores: Array, wins: Array, log_base: Array, temperature: float, answers: Array, alpha: float
) -> tuple[float, Array]:
    """Objective and its gradient. -> [], [X Y]"""
    weight = alpha * wins.sum()
    log_policy = log_softmax(log_base - scores / temperature, axis=1)
    term = float(np.sum(np.where(answers > 0, answers * log_policy, 0.0)))
    value = float(negative_log_likelihood(scores, wins).sum()) + weight * term
    pull = (answers.sum(axis=1, keepdims=True) * np.exp(log_policy) - answers) / temperature
    return value, (gradient(scores, wins, ridge=RIDGE) + weight * pull).ravel()
