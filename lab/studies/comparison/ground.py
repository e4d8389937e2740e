"""The world of a cell: a drawn text world under a rate limit, with log-linear policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

import numpy as np
from scipy.special import log_softmax, softmax

from lab.studies.limits.worlds import RARE, Indices, phrase_frequencies
from pddpo_lab.worlds.log_linear import LogLinear, phrase_blocks, slot_sizes
from pddpo_lab.worlds.log_linear_parts import decoded_by_slot
from pddpo_ray.config import DrawnFamilyConfig, RateLimitConfig
from pddpo_ray.records import (
    Array,
    Decoding,
    PolicyVersion,
    Response,
)
from pddpo_ray.worlds.oracle import Oracle
from pddpo_ray.worlds.text.drawn_world import DrawnWorldSpec, build_drawn_world
from pddpo_ray.worlds.text.family import drawn_grammar

Bonus = Literal["elliptical", "proposals", "off"]
LIMIT, BETA, TOP_P = 0.05, 0.2, 0.9
REFERENCE = PolicyVersion(0, "reference", "", "")
BASELINE_ANSWERS, NEVER, LARGEST_LOGIT = 8, 1e-300, 6.0


@dataclass(frozen=True, eq=False)
class Ground:
    """A drawn text world under a rate limit. `oracle.cost` [X, Y] is the chance of a label "unsafe"."""

    oracle: Oracle
    policies: LogLinear
    baseline: Array
    """Nucleus of the reference, which writes no rare phrase. [X, Y]"""
    labeller: Oracle
    """Whose reward and cost the labels of a run are drawn from: the truth's own, or those of models."""

    def features(self, responses: Sequence[Response]) -> Array:
        return self.policies.features(*cells(responses))


def fair_ground(seed: int, rare: float = RARE) -> Ground:
    """The demo's family under a rate of 5 %, the reference a product of phrase frequencies, `rare` for rare phrases. A
    seed whose limit does not bind is drawn on."""
    family = DrawnFamilyConfig(limit=RateLimitConfig(at_most=LIMIT))
    for number in count(seed, 100_000):
        grammar = drawn_grammar(family, number)
        log_reference = phrase_frequencies(grammar, number, rare)
        spec = DrawnWorldSpec(seed=number, family=family, beta=BETA, cost_max=LARGEST_LOGIT)
        made = build_drawn_world(spec, np.log(0.995) + log_reference, grammar).oracle
        oracle = replace(made, reference=softmax(log_reference, axis=1), reward=made.reward[:, :-1],
                         cost=made.cost[:, :-1])  # fmt: skip
        if 0.05 < oracle.optimum.multiplier < 20.0:
            break
    policies = LogLinear(
        log_softmax(log_reference, axis=1), phrase_blocks(grammar, slots=1.0, topics=0.5, interactions=0.5)
    )
    narrow, sizes = Decoding(top_p=TOP_P), slot_sizes(grammar)
    baseline = np.stack([decoded_by_slot(row, sizes, narrow) for row in policies.log_reference])
    return Ground(oracle, policies, baseline, labeller=oracle)


def cells(responses: Sequence[Response]) -> tuple[Indices, Indices]:
    """Rows and columns of answers. -> [n], [n]"""
    places = [(one.prompt.token_ids[0], one.token_ids[0]) for one in responses]
    prompts, answers = np.array(places, dtype=np.int64).reshape(-1, 2).T
    return prompts, answers
