"""The theorem for split roles (paper.md §16) on every world that ships: both of its inequalities, by exact sums."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pddpo_lab.verify.checks import Check, at_most
from pddpo_lab.verify.optimism import SplitRoles, split_roles
from pddpo_lab.worlds.tabular.world import TabularWorld, random_world, rare_world, trap_world, two_limits_world
from pddpo_ray.records import Array
from pddpo_ray.worlds.oracle import Oracle

ROUNDING = 1e-9
"""By how much a share of a bound may be above 1 in float64."""
NOISES = (0.05, 0.5, 2.0)
"""Standard deviations of the fits' errors, in logits."""


def worlds_that_ship() -> dict[str, TabularWorld]:
    """Every named tabular world, those that are drawn with two seeds."""
    return {
        "trap": trap_world(),
        "two-limits": two_limits_world(),
        **{f"random {seed}": random_world(seed) for seed in (0, 1)},
        **{f"rare {seed}": rare_world(seed) for seed in (0, 1)},
    }


def split_role_claims() -> list[Check]:
    """Both inequalities for each world that ships; the value is the largest share of the bound that is used."""
    checks = []
    for name, world in worlds_that_ship().items():
        found = list(sides(world.oracle))
        gap = max(float(one.share_of_bound.max()) for one in found)
        inner = max(float(one.share_of_collector.max()) for one in found)
        checks += [
            at_most(
                f"A policy without bonus loses at most twice what is uncertain where pairs are collected ({name}).",
                f"split roles: J(pi*; s) - J(pi; s) over 2 E_mu b ({name})",
                gap,
                1.0 + ROUNDING,
            ),
            at_most(
                f"The collecting policy is where more is uncertain than where the learner is ({name}).",
                f"split roles: E_pi b over E_mu b ({name})",
                inner,
                1.0 + ROUNDING,
            ),
        ]
    return checks


def sides(oracle: Oracle, draws: int = 64, seed: int = 0) -> Iterator[SplitRoles]:
    """Both sides for fits with errors of three sizes and multipliers from 0 to 2 rho of each limit; the bonus is the
    smallest valid one, and wider ones. `draws` of each at once."""
    generator = np.random.default_rng([seed, draws])
    costs = np.stack([oracle.cost, *(limit.cost for limit in oracle.further)])
    for noise in NOISES:
        multipliers = 2.0 * oracle.rho * generator.choice([0.0, 0.1, 0.5, 1.0], (draws, len(costs), 1, 1))
        errors = noise * generator.standard_normal((draws, 1 + len(costs), *oracle.reward.shape))
        score = oracle.reward - np.sum(multipliers * costs, axis=1)
        error = errors[:, 0] - np.sum(multipliers * errors[:, 1:], axis=1)
        # b_r + lambda b_c, each at least its own error: at least the error of the score
        bonus: Array = np.abs(errors[:, 0]) + np.sum(multipliers * np.abs(errors[:, 1:]), axis=1)
        wider = generator.choice([0.0, 0.0, 1.0], bonus.shape) * np.abs(generator.standard_normal(bonus.shape))
        for valid in (bonus, bonus + wider):
            yield split_roles(oracle.prior, oracle.reference, score, score - error, valid, oracle.beta)
