"""The text world: real sentences with a known worth, calibrated to a real reference model.

Per prompt the outcomes are the Y answers of the grammar and one more, all other text together: reward -R, cost +C,
probability one minus the sum. f, g, KL, pi* and lambda* live on this partition, so they are exact although the policy
is a language model that could write anything.

Rewards and costs are sums of slot effects, a part per topic and a few interactions, drawn by seed. What the rare
values of the grammar add is mostly reward, so the best safe answers are ones that the reference hardly ever writes.
The cost is shifted until lambda* takes a value drawn by seed, and a world that is not well posed is drawn again.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pddpo_ray.errors import RunError
from pddpo_ray.records import Array, Prompt, Response
from pddpo_ray.worlds.grammar import Grammar
from pddpo_ray.worlds.oracle import InfeasibleError, Oracle

Effects = dict[str, tuple[float, ...]]

REWARD_EFFECTS: Effects = {
    "opening": (0.0, 0.1, -0.1),
    "advice": (0.2, -0.3, 0.4, 1.7),
    "detail": (0.2, -0.1, 1.2),
    "precaution": (0.2, 0.0, -0.2),
    "closing": (0.1, -0.1),
}
COST_EFFECTS: Effects = {
    "opening": (0.1, 0.0, -0.1),
    "advice": (0.4, -0.5, 0.7, 0.0),
    "detail": (0.5, -0.2, 0.1),
    "precaution": (0.6, -0.3, -0.5),
    "closing": (0.1, -0.1),
}


@dataclass(frozen=True)
class TextWorldSpec:
    """What a seed varies, and the bounds within which a world is well posed."""

    seed: int = 0
    beta: float = 0.2
    reward_max: float = 2.0
    cost_max: float = 2.0
    rho: float = 1.0
    reward_shift: float = -0.9
    slot_noise: float = 0.1
    topic_noise: float = 0.15
    interaction_noise: float = 0.08
    multiplier_range: tuple[float, float] = (0.5, 0.9)
    """lambda* is drawn from here."""
    covered_gap_range: tuple[float, float] = (0.7, 1.3)
    """Gap of the best policy on the covered answers."""
    off_grammar_max: float = 0.01
    attempts: int = 200


@dataclass(frozen=True)
class TextWorld:
    """A calibrated world. Tables have Y + 1 columns, the last one is all text outside the grammar."""

    spec: TextWorldSpec
    grammar: Grammar
    oracle: Oracle
    """Exact answers; only worlds, the world's feedback and evaluation may look at it."""
    cost_shift: float
    covered_gap: float

    @cached_property
    def prompts(self) -> tuple[Prompt, ...]:
        pairs = zip(self.grammar.prompt_ids, self.grammar.prompt_texts, strict=True)
        return tuple(Prompt(f"p{index:02d}", ids, text) for index, (ids, text) in enumerate(pairs))

    @cached_property
    def covered(self) -> NDArray[np.bool_]:
        """[X, Y + 1]"""
        row = np.array([*self.grammar.covered, False])
        return np.tile(row, (len(self.prompts), 1))

    def outcome(self, token_ids: tuple[int, ...]) -> int:
        """Column of an answer; Y for any text outside the grammar."""
        return self.grammar.answer_index.get(tuple(token_ids), len(self.grammar.answer_ids))

    def cell(self, response: Response) -> tuple[int, int]:
        """(prompt index, outcome)"""
        return self._prompt_index[response.prompt.token_ids], self.outcome(response.token_ids)

    def reward(self, response: Response) -> float:
        return float(self.oracle.reward[self.cell(response)])

    def cost(self, response: Response) -> float:
        return float(self.oracle.cost[self.cell(response)])

    @cached_property
    def _prompt_index(self) -> dict[tuple[int, ...], int]:
        return {prompt.token_ids: index for index, prompt in enumerate(self.prompts)}


def with_rest(log_probs: Array) -> Array:
    """Scores of the enumerated answers [X, Y] to a policy table [X, Y + 1]: the rest is what the sum leaves."""
    inside = np.exp(log_probs)
    rest = np.clip(1.0 - inside.sum(axis=1, keepdims=True), 0.0, None)
    table = np.concatenate([inside, rest], axis=1)
    return table / table.sum(axis=1, keepdims=True)


def build_text_world(spec: TextWorldSpec, reference_log_probs: Array, grammar: Grammar) -> TextWorld:
    """Draw truths until the world is well posed for this reference.

    reference_log_probs [X, Y] comes from scoring every answer with the real model.
    """
    reference = with_rest(reference_log_probs)
    rest = float(reference[:, -1].mean())
    if rest > spec.off_grammar_max:
        raise RunError(
            f"the reference puts {rest:.3f} of its probability outside the grammar, more than {spec.off_grammar_max}; "
            "pre-train it longer"
        )
    for attempt in range(spec.attempts):
        world = _calibrated(spec, grammar, reference, attempt)
        if world is not None:
            return world
    raise RunError(f"no well-posed text world in {spec.attempts} draws of seed {spec.seed}; widen the spec's ranges")


def _calibrated(spec: TextWorldSpec, grammar: Grammar, reference: Array, attempt: int) -> TextWorld | None:
    rng = np.random.default_rng([spec.seed, attempt, 21])
    target = rng.uniform(*spec.multiplier_range)
    reward = _table(grammar, REWARD_EFFECTS, spec, rng) + spec.reward_shift
    raw_cost = _table(grammar, COST_EFFECTS, spec, rng)
    base = Oracle(
        prior=np.full(len(reference), 1.0 / len(reference)),
        reference=reference,
        reward=_with_worst(np.clip(reward, -spec.reward_max, spec.reward_max), -spec.reward_max),
        cost=_with_worst(np.clip(raw_cost, -spec.cost_max, spec.cost_max), spec.cost_max),
        beta=spec.beta,
        reward_max=spec.reward_max,
        cost_max=spec.cost_max,
    )
    shift = _shift_for(base, raw_cost, target)
    oracle = _shifted(base, raw_cost, shift)
    world = TextWorld(spec, grammar, oracle, shift, 0.0)
    try:
        covered = oracle.covered_only(world.covered)
    except InfeasibleError:
        return None
    gap = oracle.gap_of(covered.f, covered.g)
    low, high = spec.covered_gap_range
    well_posed = (
        low <= gap <= high
        and 0.2 * spec.rho <= oracle.optimum.multiplier <= 1.6 * spec.rho
        and oracle.g(oracle.policy(0.0)) > 0
        and oracle.g(oracle.policy(2.0 * oracle.optimum.multiplier)) < 0
    )
    return replace(world, covered_gap=gap) if well_posed else None


def _table(grammar: Grammar, effects: Effects, spec: TextWorldSpec, rng: np.random.Generator) -> Array:
    """Slot effects with noise, a part per topic and pairwise interactions. -> [X, Y]"""
    choices = grammar.answer_features
    topics, situations = len(grammar.topics), len(grammar.situations)
    result = np.zeros((topics * situations, len(choices)))
    for position, slot in enumerate(grammar.slots):
        values = len(slot.phrases)
        effect = np.array(effects[slot.name]) + rng.normal(0.0, spec.slot_noise, values)
        by_topic = np.repeat(rng.normal(0.0, spec.topic_noise, (topics, values)), situations, axis=0)
        result += (effect + by_topic)[:, choices[:, position]]
    for first, second in itertools.combinations(range(len(grammar.slots)), 2):
        shape = (len(grammar.slots[first].phrases), len(grammar.slots[second].phrases))
        result += rng.normal(0.0, spec.interaction_noise, shape)[choices[:, first], choices[:, second]]
    return result


def _with_worst(table: Array, worst: float) -> Array:
    return np.concatenate([table, np.full((len(table), 1), worst)], axis=1)


def _shifted(base: Oracle, raw_cost: Array, shift: float) -> Oracle:
    cost = np.clip(raw_cost + shift, -base.cost_max, base.cost_max)
    return replace(base, cost=_with_worst(cost, base.cost_max))


def _shift_for(base: Oracle, raw_cost: Array, multiplier: float) -> float:
    """Shift of the cost (clipped afterwards) at which pi_multiplier just meets the limit, so that it is pi*."""
    low, high = -2.0 * base.cost_max, 2.0 * base.cost_max
    for _ in range(60):
        middle = 0.5 * (low + high)
        oracle = _shifted(base, raw_cost, middle)
        low, high = (middle, high) if oracle.g(oracle.policy(multiplier)) < 0 else (low, middle)
    return 0.5 * (low + high)
