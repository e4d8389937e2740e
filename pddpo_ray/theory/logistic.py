"""Linear scores of who wins, under a normal prior: ridge logistic regression by scipy."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from pddpo_ray.records import Array


def most_probable(rows: Array, ridge: float, weights: Array | float = 1.0) -> Array:
    """argmin over w of sum weight softplus(-row . w) + ridge / 2 |w|^2, a prior of variance 1 / ridge; every row won.
    [n, q], [n] -> [q]"""

    def loss_and_slope(scores: Array) -> tuple[float, Array]:
        leads = rows @ scores
        loss = float(np.sum(weights * np.logaddexp(0.0, -leads))) + 0.5 * ridge * float(scores @ scores)
        return loss, ridge * scores - (weights * expit(-leads)) @ rows

    def curvature(scores: Array) -> Array:
        chance = expit(rows @ scores)
        return (rows * (weights * chance * (1.0 - chance))[:, None]).T @ rows + ridge * np.eye(rows.shape[1])

    start, to = np.zeros(rows.shape[1]), {"gtol": 1e-8}
    return np.asarray(minimize(loss_and_slope, start, jac=True, hess=curvature, method="trust-exact", options=to).x)
