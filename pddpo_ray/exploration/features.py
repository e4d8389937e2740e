"""Features of answers: hidden states of the frozen reference, whitened once (paper.md §15).

The whitening is fitted on a calibration set at the start of a run and never again, because bonuses of different
rounds must be comparable; its digest goes into the journal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pddpo_ray.records import Array, Response

Features = Callable[[Sequence[Response]], Array]
"""Answers -> features [n, q]."""

VARIANCE_FLOOR = 1e-4
ROWS_PER_DIRECTION = 4
FEATURE_CLIP = 3.0
"""Largest norm of a whitened feature, which is 1 on average: one odd answer must not fill the design matrix."""


@dataclass(frozen=True, eq=False)
class Whitening:
    """phi = projection (m - mean) / sqrt(q), its norm clipped at `norm_clip`. mean [h], projection [q, h]."""

    mean: Array
    projection: Array
    norm_clip: float = FEATURE_CLIP

    def apply(self, hidden: Array) -> Array:
        """Whitened features of mean-pooled hidden states. [n, h] -> [n, q]"""
        phi = (np.asarray(hidden, dtype=np.float64) - self.mean) @ self.projection.T / np.sqrt(len(self.projection))
        norm = np.linalg.norm(phi, axis=1, keepdims=True)
        return phi * np.minimum(1.0, self.norm_clip / np.maximum(norm, 1e-300))

    @property
    def digest(self) -> str:
        """sha256 over mean and projection (float64, little endian): names this whitening in the journal."""
        content = hashlib.sha256()
        for array in (self.mean, self.projection):
            content.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
        return content.hexdigest()


def fit_whitening(hidden: Array, rank: int, *, seed: int, norm_clip: float = FEATURE_CLIP) -> Whitening:
    """Whitening to `rank` directions (at most h) from calibration rows [n, h].

    Principal directions with variances floored at 1e-4 of the largest. Fewer than 4 rows per direction cannot tell
    principal directions from noise: then a random Gaussian projection, each of its directions standardised.
    """
    rows = np.asarray(hidden, dtype=np.float64)
    if rows.ndim != 2 or len(rows) < 2:
        raise ValueError(f"calibration needs at least 2 rows of hidden states, got shape {rows.shape}")
    rank = min(rank, rows.shape[1])
    mean = rows.mean(axis=0)
    if len(rows) < ROWS_PER_DIRECTION * rank:
        return Whitening(mean, _random_projection(rows - mean, rank, seed), norm_clip)
    _, singular_values, directions = np.linalg.svd(rows - mean, full_matrices=False)
    variances = singular_values[:rank] ** 2 / (len(rows) - 1)
    # the sign of a principal direction is arbitrary; fixing it makes the digest the same on every machine
    axes = directions[:rank]
    axes = axes * np.sign(axes[np.arange(rank), np.abs(axes).argmax(axis=1)])[:, None]
    scales = np.sqrt(np.maximum(variances, VARIANCE_FLOOR * variances[0]))
    return Whitening(mean, axes / scales[:, None], norm_clip)


def _random_projection(centred: Array, rank: int, seed: int) -> Array:
    generator = np.random.default_rng([seed, centred.shape[1], rank])
    projection = generator.standard_normal((rank, centred.shape[1])) / np.sqrt(centred.shape[1])
    spread = (centred @ projection.T).std(axis=0)
    return projection / np.maximum(spread, 1e-2 * spread.max())[:, None]


def whitened(hidden_states: Features, whitening: Whitening) -> Features:
    """Features function of an explorer from the trainer's hidden states."""
    return lambda responses: whitening.apply(hidden_states(responses))


def pool_features(features: Features, pool: Mapping[str, Sequence[Response]]) -> dict[str, Array]:
    """Features of the baseline's answers, per prompt id, in one call. -> {id: [m, q]}"""
    lengths = [len(answers) for answers in pool.values()]
    if not lengths or min(lengths) == 0:
        raise ValueError("every prompt needs at least one baseline answer to centre its features on")
    rows = features([response for answers in pool.values() for response in answers])
    return dict(zip(pool, np.split(rows, np.cumsum(lengths)[:-1]), strict=True))


def centres(pool_rows: Mapping[str, Array]) -> dict[str, Array]:
    """phi_base(x): mean features of the baseline's answers, per prompt id. {id: [m, q]} -> {id: [q]}

    Policies need within-prompt differences alone, so features are centred on the baseline; uncentred ones keep a floor
    of uncertainty that no amount of data removes (paper.md errata 13 and 15).
    """
    return {prompt: rows.mean(axis=0) for prompt, rows in pool_rows.items()}
