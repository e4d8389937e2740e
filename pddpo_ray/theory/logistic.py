"""Logistic regression in a box: Bradley-Terry scores that are linear in features, with a margin for every row.

    minimise over |theta| <= bound:   sum of w_i softplus(-(a_i . theta + m_i)) + ridge/2 ||theta||^2

With one-hot features a_i = e(winner) - e(loser) this is the box maximum likelihood of `box_mle` (paper.md §4);
that one solves a table faster, this one takes any rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from pddpo_ray.theory.box_mle import RIDGE

Array = NDArray[np.float64]


def bounded_logistic(
    rows: Array,
    *,
    margins: Array | None = None,
    weights: Array | None = None,
    bound: float | None = None,
    ridge: float = RIDGE,
) -> Array:
    """Minimiser theta of the loss above; no row gives zeros. rows [n, p], margins [n], weights [n] -> [p]"""
    shift = np.zeros(len(rows)) if margins is None else margins
    mass = np.ones(len(rows)) if weights is None else weights
    # divided by the data's weight, so that the solver's tolerances mean the same for few rows and for many
    scale = 1.0 / max(1.0, float(mass.sum()))

    def loss_and_slope(theta: Array) -> tuple[float, Array]:
        logits = rows @ theta + shift
        loss = float(mass @ np.logaddexp(0.0, -logits)) + 0.5 * ridge * float(theta @ theta)
        slope = ridge * theta - rows.T @ (mass * expit(-logits))
        return scale * loss, scale * slope

    limits = None if bound is None else [(-bound, bound)] * rows.shape[1]
    found = minimize(
        loss_and_slope,
        np.zeros(rows.shape[1]),
        jac=True,
        method="L-BFGS-B",
        bounds=limits,
        options={"maxiter": 5000, "maxfun": 10000, "ftol": 1e-15, "gtol": 1e-10},
    )
    return np.asarray(found.x, dtype=np.float64)
