"""Two requests, each with a curt, a polite and an effusive answer: `world={kind: two-requests, curt: 0.5}`."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from pddpo_lab.worlds.tabular.backends import tabular_backends
from pddpo_lab.worlds.tabular.world import TabularWorld
from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import Config
from pddpo_ray.config.sections.section import Strict
from pddpo_ray.config.sections.world import InstalledWorld, WorldKind
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.worlds.oracle import Oracle


class TwoRequests(Strict):
    """How often the reference is curt."""

    curt: float = Field(0.5, gt=0, lt=0.9)
    """Probability of the curt answer, which is useful and costs most."""


def two_requests(config: Config, store: ArtifactStore) -> Backends:
    """The parts of a run: a table with its truth. [2 requests, 3 answers]"""
    assert isinstance(config.world, InstalledWorld)
    settings = config.world.settings
    assert isinstance(settings, TwoRequests)
    rest = (1.0 - settings.curt) / 2
    reference = np.tile([settings.curt, rest, rest], (2, 1))
    reward = np.array([[1.0, 0.6, -0.5], [0.8, 0.9, -0.2]])
    cost = np.array([[1.5, -1.0, -1.5], [1.0, -0.8, -1.2]])
    oracle = Oracle(np.array([0.5, 0.5]), reference, reward, cost, config.beta, cost_max=config.dual.cost_max)
    covered = np.ones((2, 3), dtype=bool)
    return tabular_backends(config, TabularWorld(oracle, reference, covered, offline_pairs=60), store)


TWO_REQUESTS = WorldKind("pddpo_politeness.world:two_requests", TwoRequests)
