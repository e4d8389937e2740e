"""A computed reward on a world that can be enumerated: the truth of every outcome, and its own reward as a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pddpo_ray.contracts import Measure
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.limits.sources import Source
from pddpo_ray.records import Response
from pddpo_ray.worlds.oracle import Oracle
from pddpo_ray.worlds.table_limits import TableLimits, costs_of
from pddpo_ray.worlds.text.limits import ENUMERABLE, of_texts
from pddpo_ray.worlds.text.world import TextWorld


def own_reward(oracle: Oracle, cell: Callable[[Response], tuple[int, int]], stated_limit: StatedLimit) -> Measure:
    """The world's own reward, without noise. Raises UserError where it leaves the recipe's bounds."""
    costs, everywhere = costs_of(stated_limit, oracle.reward, "the world's reward"), np.ones((1, len(oracle.prior)))
    single = oracle.reward[None]
    limits = TableLimits(oracle, cell, oracle.cost_max, (stated_limit,), costs[None], single, everywhere, oracle.prior)
    return limits.measure


def with_reward(world: TextWorld, stated_limit: StatedLimit, source: Source | None) -> Oracle:
    """The world's problem with what a source says of every outcome in place of its reward; nan where the source would
    have to be asked. Text outside the grammar has the lowest reward. Raises UserError for texts without a number."""
    if source is None:
        return world.oracle
    ends = stated_limit.limit.cost_range
    if stated_limit.source.kind not in ENUMERABLE or ends is None:
        return replace(world.oracle, reward=np.full(world.oracle.reward.shape, np.nan))
    reward = -costs_of(stated_limit, of_texts(world.grammar, stated_limit, source), str(stated_limit.source))
    return replace(world.oracle, reward=reward, reward_max=max(abs(end) for end in ends))
