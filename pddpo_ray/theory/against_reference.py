"""A policy beside the reference: share of wins, divergence, gain in units of the reference's own spread. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from pddpo_ray.records import Array
from pddpo_ray.theory.agreement import agreement


def win_shares(scores: Sequence[ArrayLike], reference: Sequence[ArrayLike]) -> Array:
    """Per prompt the share of its pairs (own answer, reference's answer) in which the own one scores higher; a tie is
    half a win. scores, reference: per prompt the scores of its answers. -> [prompts]

    win_shares([[1, 3]], [[2, 2]]) = 1/2: 3 beats both, 1 beats neither
    """
    return np.array(
        [
            agreement(np.subtract.outer(np.asarray(row, np.float64), np.asarray(base_row, np.float64))).mean()
            for row, base_row in zip(scores, reference, strict=True)
        ]
    )


def kl_per_token(log_ratios: ArrayLike, tokens: ArrayLike) -> float | None:
    """Sum of log pi/pi_ref over answers drawn from pi, by their tokens: the divergence per token. [n], [n] -> []"""
    count = float(np.sum(np.asarray(tokens, np.float64)))
    return float(np.sum(np.asarray(log_ratios, np.float64))) / count if count else None


def standard_gain(scores: Sequence[ArrayLike], reference: Sequence[ArrayLike]) -> float | None:
    """Mean score less the reference's, in standard deviations of the reference's answers, which makes scorers of
    different scales comparable. None where the reference's answers all score alike."""
    values, base = (np.concatenate([np.asarray(row, np.float64) for row in rows]) for rows in (scores, reference))
    spread = float(base.std(ddof=1)) if base.size > 1 else 0.0
    return float(values.mean() - base.mean()) / spread if spread > 0 else None
