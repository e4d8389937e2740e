"""Text worlds: real sentences with a known worth, calibrated to a real reference model.

Per prompt the outcomes are the Y answers of the grammar and one more, all other text together: reward -R, cost +C,
probability one minus the sum. f, g, KL, pi* and lambda* live on this partition, so they are exact although the policy
is a language model that could write anything. `worlds.text.drawn_world` draws the rewards and costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from pddpo_ray.errors import RunError, UserError
from pddpo_ray.records import Array, Prompt, Response
from pddpo_ray.worlds.oracle import Limit, Oracle
from pddpo_ray.worlds.text.grammar import Grammar

OFF_GRAMMAR_MAX = 0.01
"""Largest probability that a reference may leave to text outside the grammar."""


@dataclass(frozen=True)
class WorldSpec:
    """The problem's scales, and how often it is drawn at most."""

    seed: int = 0
    beta: float = 0.2
    reward_max: float = 2.0
    cost_max: float = 2.0
    multiplier_range: tuple[float, float] = (0.5, 0.9)
    """lambda* of a logit limit, at reward_max = cost_max, is drawn from here."""
    attempts: int = 200


@dataclass(frozen=True)
class TextWorld:
    """A calibrated world. Tables have Y + 1 columns, the last one is all text outside the grammar."""

    grammar: Grammar
    oracle: Oracle
    """Exact answers; only worlds, the world's feedback and evaluation may look at it. Its cost is what the limit is
    about: the logits themselves, or the probabilities of an unsafe label."""
    logits: Array
    """[X, Y + 1] cost that labels are drawn from: P(unsafe) = sigmoid."""
    covered_gap: float
    further: tuple[Limit, ...] = ()
    """Further costs (logits) and their limits on the mean; the oracle's optimum does not look at them."""
    groups: NDArray[np.int64] | None = None
    """[X] group of every prompt, where the world has groups."""
    label_noise: float = 0.0
    """Share of the labels that say the opposite."""

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
        """The logit that labels are drawn from."""
        return float(self.logits[self.cell(response)])

    def worth(self, response: Response) -> tuple[float, float]:
        """Reward, and the chance of the label "unsafe"."""
        return self.reward(response), float(expit(self.cost(response)))

    @property
    def limits_rate(self) -> bool:
        """Whether the limit is about the chance of an unsafe label; otherwise it is about the logits' mean."""
        return self.logits is not self.oracle.cost

    @cached_property
    def _prompt_index(self) -> dict[tuple[int, ...], int]:
        return {prompt.token_ids: index for index, prompt in enumerate(self.prompts)}


def with_rest(log_probs: Array) -> Array:
    """Scores of the enumerated answers [X, Y] to a policy table [X, Y + 1]: the rest is what the sum leaves."""
    inside = np.exp(log_probs)
    remainder = np.clip(1.0 - inside.sum(axis=1, keepdims=True), 0.0, None)
    table = np.concatenate([inside, remainder], axis=1)
    return table / table.sum(axis=1, keepdims=True)


def reference_table(log_probs: Array) -> Array:
    """[X, Y] to [X, Y + 1]. Raises RunError where too much of the reference is outside the grammar."""
    table = with_rest(log_probs)
    off_grammar = float(table[:, -1].mean())
    if off_grammar > OFF_GRAMMAR_MAX:
        raise RunError(
            f"the reference puts {off_grammar:.3f} of its probability outside the grammar, more than {OFF_GRAMMAR_MAX}"
            "; pre-train it longer"
        )
    return table


def not_well_posed(attempts: int, seed: int) -> UserError:
    """What a recipe whose beta, bound of costs or family no drawn world fits is told."""
    return UserError(
        f"world: none of {attempts} worlds of seed {seed} has an optimum inside its bounds under this beta,"
        " dual.cost_max and family; choose others, or another world.seed"
    )


def effects_table(
    grammar: Grammar, means: Sequence[ArrayLike], noise: tuple[float, float, float], rng: np.random.Generator
) -> Array:
    """Slot effects about their means, a part per topic and pairwise interactions; noise of each. -> [X, Y]"""
    slot_noise, topic_noise, pair_noise = noise
    choices = grammar.answer_features
    topics, situations = len(grammar.topics), len(grammar.situations)
    result = np.zeros((topics * situations, len(choices)))
    for position, mean in enumerate(means):
        effect = np.asarray(mean) + rng.normal(0.0, slot_noise, len(np.asarray(mean)))
        by_topic = np.repeat(rng.normal(0.0, topic_noise, (topics, len(effect))), situations, axis=0)
        result += (effect + by_topic)[:, choices[:, position]]
    for first, second in itertools.combinations(range(len(grammar.slots)), 2):
        shape = (len(grammar.slots[first].phrases), len(grammar.slots[second].phrases))
        result += rng.normal(0.0, pair_noise, shape)[choices[:, first], choices[:, second]]
    return result


def bounded(table: Array, largest: float, sign: float) -> Array:
    """The table within [-largest, largest], and the column of text outside the grammar: sign * largest."""
    last_column = np.full((len(table), 1), sign * largest)
    return np.concatenate([np.clip(table, -largest, largest), last_column], axis=1)
