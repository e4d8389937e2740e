"""Uncertainty models behind one small interface. Which to use when:

- `EllipticalBonus`: the default. The paper's bonus; it shrinks with data and reports coverage; a q x q matrix a stream.
- `NoBonus`: the controls. The policy's own answers get labelled (`off`), any candidate (`proposals`), or the best of
  the candidates by the policy's own scores (`greedy`).

The laboratory has two more (`pddpo_lab.bonuses`). Two relatives act elsewhere: the bonus in the loss (`theory.margins`)
trains an optimistic policy, for the theory's mode; the XPO-style term (`objectives.baseline_optimism_loss`) needs no
features but never switches off.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from pddpo_ray.exploration.design import (
    FISHER_WEIGHT,
    Design,
    empty_design,
    factor,
    fitted_design,
    inverse,
    sherman_morrison,
)
from pddpo_ray.records import Array, Stage

BOTH: tuple[Stage, ...] = ("reward", "cost")


def elliptical(matrix: Array, centred: Array, k: float) -> Array:
    """b = k ||L^-1 phi_c|| with L L^T = Lambda. Lambda [..., q, q], centred features [..., n, q] -> [..., n].

    How wrong a score may still be, in Bradley-Terry logit units: k posterior standard deviations. The paper's own
    constants are in `pddpo_lab.verify.formulas`. b lies in (0, k s0 ||phi_c||] and never grows when data are added.
    """
    return k * np.linalg.norm(np.linalg.solve(factor(matrix), np.swapaxes(centred, -1, -2)), axis=-2)


def elliptical_from_inverse(inverse_matrix: Array, centred: Array, k: float) -> Array:
    """The same from Lambda^-1 [q, q], for picks inside a batch. [n, q] -> [n]"""
    return np.asarray(k * np.sqrt(np.maximum(np.sum((centred @ inverse_matrix) * centred, axis=-1), 0.0)))


def saturation(bonuses: Array, centred: Array, *, k: float, s0: float) -> float:
    """Share of answers whose bonus is still that of an empty design (within 1 %). [n], [n, q] -> []"""
    prior = k * s0 * np.linalg.norm(centred, axis=-1)
    return float(np.mean(bonuses >= 0.99 * prior))


class Uncertainty(Protocol):
    """What the explorer asks. Features are centred on the baseline, so a pair's v is a difference of two of them."""

    def start_batch(self, generator: np.random.Generator) -> None:
        """Prepares for a batch of picks; nothing that `picked` does survives the next call."""
        ...

    def bonuses(self, prompt: str, centred: Array) -> tuple[Array, Array]:
        """Reward and cost bonus of answers to one prompt. [n, q] -> [n], [n]"""
        ...

    def distances(self, differences: Array) -> Array:
        """How much comparing would teach, for the comparator `max_info`. [n, q] -> [n]"""
        ...

    def picked(self, prompt: str, chosen: Array, other: Array) -> None:
        """A pair was picked in this batch and will be compared. [q], [q]"""
        ...

    def observe(self, prompt: str, chosen: Array, other: Array, streams: tuple[Stage, ...] = BOTH) -> None:
        """A pair was compared; kept for good. [q], [q]"""
        ...

    @property
    def information(self) -> float:
        """One number that grows with what was compared (`explore/logdet`)."""
        ...


class EllipticalBonus:
    """b = k ||phi_c||_{Lambda^-1}, with one Lambda per label stream."""

    def __init__(self, dimension: int, *, k: float, s0: float, weight: float = FISHER_WEIGHT) -> None:
        self.k, self.s0, self.weight = k, s0, weight
        self.designs: dict[Stage, Design] = {stage: empty_design(dimension, s0=s0, weight=weight) for stage in BOTH}
        self._inverses: dict[Stage, Array] = {}

    def start_batch(self, generator: np.random.Generator) -> None:
        self._inverses = {stage: inverse(design.matrix) for stage, design in self.designs.items()}

    def bonuses(self, prompt: str, centred: Array) -> tuple[Array, Array]:
        reward, cost = (elliptical_from_inverse(self._inverses[stage], centred, self.k) for stage in BOTH)
        return reward, cost

    def distances(self, differences: Array) -> Array:
        return elliptical_from_inverse(self._inverses["reward"] + self._inverses["cost"], differences, 1.0)

    def picked(self, prompt: str, chosen: Array, other: Array) -> None:
        row = chosen - other
        self._inverses = {stage: sherman_morrison(matrix, row, self.weight) for stage, matrix in self._inverses.items()}

    def observe(self, prompt: str, chosen: Array, other: Array, streams: tuple[Stage, ...] = BOTH) -> None:
        for stage in streams:
            self.designs[stage] = self.designs[stage].add((chosen - other)[None])

    def learn(self, stage: Stage, rows: Array, signs: Array) -> None:
        """Counts all pairs so far with the information that they have at the most probable scores. [n, q], [n]"""
        self.designs[stage] = replace(fitted_design(rows, signs, s0=self.s0), weight=self.weight)

    @property
    def information(self) -> float:
        return 0.5 * sum(design.log_determinant for design in self.designs.values())


class HeldBonus(EllipticalBonus):
    """The bonus of a round from labelled pairs alone, as the theorem for split roles has it (paper.md §16): what was
    picked in the round and has no label yet narrows no confidence set."""

    def picked(self, prompt: str, chosen: Array, other: Array) -> None:
        return


class NoBonus:
    """No optimism: every bonus is 0."""

    def start_batch(self, generator: np.random.Generator) -> None:
        return

    def bonuses(self, prompt: str, centred: Array) -> tuple[Array, Array]:
        return np.zeros(len(centred)), np.zeros(len(centred))

    def distances(self, differences: Array) -> Array:
        return np.linalg.norm(differences, axis=1)

    def picked(self, prompt: str, chosen: Array, other: Array) -> None:
        return

    def observe(self, prompt: str, chosen: Array, other: Array, streams: tuple[Stage, ...] = BOTH) -> None:
        return

    @property
    def information(self) -> float:
        return 0.0
