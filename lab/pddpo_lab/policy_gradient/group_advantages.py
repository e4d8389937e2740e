"""Advantages from groups of answers to one prompt, in place of critics (docs/methods.md, Constrained GRPO).

    value of an answer  s_i = (r_i - lambda c_i) / (1 + lambda) - kappa sum_t (log pi - log ref)
    advantage           a_i = s_i - mean of s_j over the others of its group
                        A_i = a_i / sqrt(mean of a^2 over the batch)

a_i has no bias as an estimate of the gradient's weight: the baseline does not know the answer (Kool et al. 2019; RLOO,
Ahmadian et al. 2024). Dividing by one number for the whole batch turns no gradient, only its length.
"""

from __future__ import annotations

import numpy as np

from pddpo_ray.records import Array


def group_advantages(
    rewards: Array, costs: Array, log_ratios: Array, *, multiplier: float, kl: float, group: int
) -> Array:
    """One number per answer, groups one after another. `log_ratios` are log pi - log ref of whole answers. -> [n]

    A batch whose groups each agree in value says nothing: its advantages are 0. Raises ValueError where n is no
    multiple of `group` or a group has fewer than two answers.
    """
    if group < 2 or len(rewards) % group:
        raise ValueError(f"{len(rewards)} answers are not groups of {group} (at least 2)")
    values = (rewards - multiplier * costs) / (1.0 + multiplier) - kl * log_ratios
    lead = lead_over_others(values, group)
    spread = float(np.sqrt(np.mean(np.square(lead))))
    # rounding of equal values is not a spread
    return np.zeros_like(lead) if spread <= 1e-12 * max(1.0, float(np.abs(values).max())) else lead / spread


def lead_over_others(values: Array, group: int) -> Array:
    """Each value less the mean of the others of its group. [n] -> [n]"""
    grouped = values.reshape(-1, group)
    others = (grouped.sum(axis=1, keepdims=True) - grouped) / (group - 1)
    return (grouped - others).ravel()
