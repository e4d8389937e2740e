"""Where the study of exploration runs: random tables with rare answers, and drawn text worlds with log-linear policies.

A ground is a world whose truth is known, the baseline that writes comparators and offline pairs and never shows what is
rare, and what a run would fit from labels. The twin's reference is a product of phrase frequencies, as in
lab/studies/limits/worlds.py, so that a world takes milliseconds and nothing is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from lab.studies.limits.worlds import Learner, Tables, Twin, phrase_frequencies
from pddpo_lab.worlds.log_linear import LogLinear, phrase_blocks, slot_sizes
from pddpo_lab.worlds.log_linear_parts import decoded_by_slot
from pddpo_lab.worlds.tabular.world import rare_world
from pddpo_ray.config import DrawnFamilyConfig, LogitLimitConfig
from pddpo_ray.records import Array, Decoding
from pddpo_ray.worlds.oracle import Oracle
from pddpo_ray.worlds.text.drawn_world import DrawnWorldSpec, build_drawn_world
from pddpo_ray.worlds.text.family import drawn_grammar

LIMIT = -3.0
"""The twin's limit on the mean cost, as in the demo."""
TOP_P = 0.9
"""Nucleus of the twin's baseline, phrase by phrase."""


@dataclass(frozen=True, eq=False)
class Ground:
    """Tables are [X, Y]."""

    oracle: Oracle
    baseline: Array
    features: Array
    """[X Y, q], prompt by prompt: what the explorer sees of an answer."""
    learner: Learner
    offline: int
    """Pairs from before the first round, two answers of the baseline each."""
    tokens: Array
    """Length of each answer. [Y]"""


def table_ground(seed: int, rare: float, beta: float) -> Ground:
    """Four prompts with eight answers, half of which have the chance `rare` each and are in no offline pair."""
    world = rare_world(seed, beta=beta, frequency=rare)
    prompts, answers = world.shape
    cells = np.eye(prompts * answers)
    return Ground(world.oracle, world.baseline, cells, Tables(world.shape), world.offline_pairs, np.ones(answers))


def twin_ground(seed: int, rare: float, beta: float) -> Ground:
    """The demo's family: 24 prompts with 216 answers, phrases of frequency `rare` among them, limit -3."""
    family = DrawnFamilyConfig(limit=LogitLimitConfig(at_most=LIMIT))
    grammar = drawn_grammar(family, seed)
    spec = DrawnWorldSpec(seed=seed, beta=beta, reward_max=2.0, cost_max=4.0, family=family)
    log_reference = phrase_frequencies(grammar, seed, rare)
    made = build_drawn_world(spec, np.log(0.995) + log_reference, grammar).oracle
    oracle = replace(made, reference=np.exp(log_reference), reward=made.reward[:, :-1], cost=made.cost[:, :-1])
    policies = LogLinear(log_reference, phrase_blocks(grammar, slots=1.0, topics=0.5, interactions=0.5))
    narrow, sizes = Decoding(top_p=TOP_P), slot_sizes(grammar)
    baseline = np.stack([decoded_by_slot(row, sizes, narrow) for row in log_reference])
    prompts, answers = log_reference.shape
    cells = policies.features(np.repeat(np.arange(prompts), answers), np.tile(np.arange(answers), prompts))
    tokens = np.array([len(ids) for ids in grammar.answer_ids], dtype=np.float64)
    return Ground(oracle, baseline, cells, Twin(policies), 1500, tokens)


GROUNDS: dict[str, Callable[[int, float, float], Ground]] = {"tables": table_ground, "twin": twin_ground}
