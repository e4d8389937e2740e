"""The family of text worlds: all effects, interactions and what rare phrases are worth are drawn by seed.

Reward and cost are sums over slots, pairs of slots and topics, on all answers as one table in float64: 24 prompts of
100,000 answers are 20 MB each. Text outside the grammar is one more outcome with the worst of both. A constant is added
to the cost so that the limit binds as stated, and a world that is not well posed is drawn again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from pddpo_ray.config import DrawnFamilyConfig, RateLimitConfig
from pddpo_ray.errors import UserError
from pddpo_ray.records import Array
from pddpo_ray.theory.multipliers.feasibility import largest_margin
from pddpo_ray.worlds.oracle import InfeasibleError, Limit, Oracle
from pddpo_ray.worlds.text.family import CARE, WAY, RarePhrase, rare_phrases
from pddpo_ray.worlds.text.grammar import Grammar
from pddpo_ray.worlds.text.phrase_pools import CARELESS
from pddpo_ray.worlds.text.world import TextWorld, WorldSpec, bounded, effects_table, not_well_posed, reference_table

SPREAD = (0.7, 0.15, 0.15)
"""Shares of slots, topics and pairs in the variance of what common phrases do."""


@dataclass(frozen=True)
class DrawnWorldSpec(WorldSpec):
    """What a seed of the family varies, and the bounds within which a world is well posed."""

    family: DrawnFamilyConfig = field(default_factory=DrawnFamilyConfig)
    reward_spread: float = 0.42
    """Standard deviation of what common phrases add to the reward, at reward_max 2. The next ones likewise."""
    cost_spread: float = 0.7
    good_reward: tuple[float, float] = (1.1, 1.6)
    bad_reward: tuple[float, float] = (0.3, 0.8)
    bad_cost: tuple[float, float] = (1.0, 1.6)
    group_spread: float = 0.4
    excess_range: tuple[float, float] = (2.0, 4.0)
    """Unsafe rate of the reward's optimum, as a multiple of a rate limit; at most 0.8."""
    careless_excess_range: tuple[float, float] = (6.0, 9.0)
    """The same where careless words tempt: most of that policy's answers are careless."""
    covered_gap_range: tuple[float, float] = (0.4, 2.0)
    """Gap of the best policy on the covered answers, at reward_max 2."""

    @property
    def noise(self) -> float:
        """Share of the spreads that is left to what words do beside their meaning."""
        return 0.5 if self.family.meaning else 1.0


def build_drawn_world(spec: DrawnWorldSpec, reference_log_probs: Array, grammar: Grammar) -> TextWorld:
    """Draw truths until the world is well posed for this reference [X, Y]. Raises UserError."""
    limit = spec.family.limit
    if isinstance(limit, RateLimitConfig):
        _demand_reachable_rate(limit.at_most, spec.cost_max)
    elif not -spec.cost_max < limit.at_most < spec.cost_max:
        raise UserError(
            f"world.family.limit.at_most={limit.at_most:g}: costs lie between -{spec.cost_max:g} and {spec.cost_max:g} "
            "(dual.cost_max); choose a limit between them"
        )
    reference = reference_table(reference_log_probs)
    for attempt in range(spec.attempts):
        world = _calibrated_world(spec, grammar, reference, attempt)
        if world is not None:
            return world
    raise not_well_posed(spec.attempts, spec.seed)


def _demand_reachable_rate(at_most: float, cost_max: float) -> None:
    """UserError if sigmoid(-cost_max) is over at_most / 2."""
    lowest = float(expit(-cost_max))
    if lowest > at_most / 2:
        needed = -np.log(at_most / 2 / (1 - at_most / 2))
        raise UserError(
            f"world.family.limit: with dual.cost_max={cost_max:g} at least {100 * lowest:.2g} % of any answer's labels "
            f"say unsafe, and the limit is {100 * at_most:.2g} %; set dual.cost_max to {needed:.1f} or more"
        )


def _logit_level(spec: DrawnWorldSpec) -> float:
    """The family's limit on mean logits; 0, for further costs, where its limit is on a rate."""
    return 0.0 if isinstance(spec.family.limit, RateLimitConfig) else spec.family.limit.at_most


def _calibrated_world(spec: DrawnWorldSpec, grammar: Grammar, reference: Array, attempt: int) -> TextWorld | None:
    rng = np.random.default_rng([spec.seed, attempt, 41])
    rare = rare_phrases(spec.family, spec.seed)
    groups = _groups(spec.family, grammar)
    reward, raw = _reward(spec, grammar, rare, rng), _cost(spec, grammar, rare, groups, rng)
    prior = np.full(len(reference), 1.0 / len(reference))
    base = Oracle(
        prior, reference, bounded(reward, spec.reward_max, -1.0), bounded(raw, spec.cost_max, 1.0), spec.beta,
        threshold=_logit_level(spec),
        reward_max=spec.reward_max, cost_max=spec.cost_max,
    )  # fmt: skip
    calibrate = _rate_limit if isinstance(spec.family.limit, RateLimitConfig) else _logit_limit
    calibrated = calibrate(spec, base, raw, rng)
    if calibrated is None:
        return None
    oracle, logits = calibrated
    world = TextWorld(grammar, oracle, logits, 0.0, groups=groups, label_noise=spec.family.label_noise)
    try:
        covered = oracle.covered_only(world.covered)
        world = replace(world, covered_gap=oracle.gap_of(covered.f, covered.g))
        low, high = np.array(spec.covered_gap_range) * spec.reward_max / 2
        if not low <= world.covered_gap <= high:
            return None
        further = _further_limits(spec, world, rng)
    except InfeasibleError:
        return None
    return None if further is None else replace(world, further=further)


def _reward(spec: DrawnWorldSpec, grammar: Grammar, rare: tuple[RarePhrase, ...], rng: np.random.Generator) -> Array:
    """Common phrases spread about a level that leaves room for the good ones below `reward_max`. -> [X, Y]"""
    unit = spec.reward_max / 2
    worth = {
        phrase: rng.uniform(*spec.good_reward) if phrase.worth == "good" else rng.uniform(*spec.bad_reward)
        for phrase in rare
        if phrase.worth != "neutral"
    }
    total = sum(value for phrase, value in worth.items() if phrase.worth == "good")
    table = _common_effects(grammar, spec.reward_spread * spec.noise, rng) + _rare_effects(grammar, worth)
    if spec.family.meaning:
        fits = grammar.answer_features[:, WAY] == grammar.prompt_features[:, :1]
        fit, tempting = rng.uniform(*spec.good_reward), rng.uniform(*spec.bad_reward)
        table += fit * fits + tempting * _careless(grammar)
        total += fit
    return np.asarray(unit * (table + 0.15 - 0.5 * total))


def _cost(
    spec: DrawnWorldSpec,
    grammar: Grammar,
    rare: tuple[RarePhrase, ...],
    groups: NDArray[np.int64] | None,
    rng: np.random.Generator,
) -> Array:
    """Costs before the constant that calibration adds. Good phrases have the cost that their seed draws. -> [X, Y]"""
    worth = {phrase: rng.uniform(*spec.bad_cost) for phrase in rare if phrase.worth == "bad"}
    table = _common_effects(grammar, spec.cost_spread * spec.noise, rng) + _rare_effects(grammar, worth)
    if spec.family.meaning:
        table += rng.uniform(*spec.bad_cost) * _careless(grammar)
    if groups is not None:
        for group in range(spec.family.groups):
            effects = _common_effects(grammar, spec.group_spread, rng) + rng.normal(0.0, spec.group_spread)
            table += effects * (groups == group)[:, None]
    return np.asarray(0.5 * spec.cost_max * table)


def _common_effects(grammar: Grammar, spread: float, rng: np.random.Generator) -> Array:
    """Slots, topics and pairs with the variance shares of SPREAD, mean 0. -> [X, Y]"""
    slots = len(grammar.slots)
    pairs = slots * (slots - 1) / 2
    noise = tuple(spread * np.sqrt(np.array(SPREAD) / (slots, slots, pairs)))
    table = effects_table(grammar, [np.zeros(len(slot.phrases)) for slot in grammar.slots], noise, rng)
    return table - table.mean()


def _rare_effects(grammar: Grammar, worth: dict[RarePhrase, float]) -> Array:
    """What rare phrases add, the same for every prompt. -> [Y]"""
    total = np.zeros(len(grammar.answer_features))
    for phrase, value in worth.items():
        total += value * (grammar.answer_features[:, phrase.slot] == phrase.value)
    return total


def _careless(grammar: Grammar) -> NDArray[np.bool_]:
    """Answers with careless advice, in a world whose words mean something. -> [Y]"""
    careless = np.array([phrase.text in CARELESS for phrase in grammar.slots[CARE].phrases])
    return np.asarray(careless[grammar.answer_features[:, CARE]])


def _groups(family: DrawnFamilyConfig, grammar: Grammar) -> NDArray[np.int64] | None:
    """Group of every prompt: situations in turn. [X]"""
    return None if family.groups == 1 else grammar.prompt_features[:, 1] % family.groups


def _logit_limit(
    spec: DrawnWorldSpec, base: Oracle, raw: Array, rng: np.random.Generator
) -> tuple[Oracle, Array] | None:
    """The mean cost is at most the limit, and lambda* takes a value that is drawn."""
    target = rng.uniform(*spec.multiplier_range) * spec.reward_max / spec.cost_max

    def shifted(shift: float) -> Oracle:
        return replace(base, cost=bounded(raw + shift, spec.cost_max, 1.0))

    shift = _root(lambda value: shifted(value).g(shifted(value).policy(target)), 3.0 * spec.cost_max)
    if shift is None:
        return None
    oracle = shifted(shift)
    multiplier = oracle.optimum.multiplier
    unit = spec.cost_max / 2
    well_posed = (
        abs(multiplier - target) < 1e-3 * target
        and oracle.g(oracle.policy(0.0)) > 0.1 * unit
        and oracle.g(oracle.policy(3 * multiplier)) < -0.05 * unit
    )
    return (oracle, oracle.cost) if well_posed else None


def _rate_limit(
    spec: DrawnWorldSpec, base: Oracle, raw: Array, rng: np.random.Generator
) -> tuple[Oracle, Array] | None:
    """The unsafe rate is at most `at_most`; the reward's optimum breaks that by a factor that is drawn."""
    assert isinstance(spec.family.limit, RateLimitConfig)
    at_most = spec.family.limit.at_most
    excess = spec.careless_excess_range if spec.family.meaning else spec.excess_range
    target = min(at_most * rng.uniform(*excess), max(0.8, 0.5 * (1.0 + at_most)))
    greedy = base.policy(0.0)
    shift = _root(
        lambda value: float(base.expectations(greedy, expit(bounded(raw + value, spec.cost_max, 1.0)))) - target,
        3.0 * spec.cost_max,
    )
    if shift is None:
        return None
    logits = bounded(raw + shift, spec.cost_max, 1.0)
    oracle = replace(base, cost=expit(logits), threshold=at_most, cost_max=1.0)
    lowest = float(oracle.prior @ oracle.cost.min(axis=1))
    return (oracle, logits) if lowest <= 0.5 * at_most else None


def _further_limits(spec: DrawnWorldSpec, world: TextWorld, rng: np.random.Generator) -> tuple[Limit, ...] | None:
    """Further costs, logits under the first one's limit (0 where that is a rate), each above it at the optimum of the
    limits before it; None where they fight."""
    limits: tuple[Limit, ...] = ()
    at_most = _logit_level(spec)
    for number in range(spec.family.further_costs):
        oracle = replace(world.oracle, further=limits)
        raw = 0.5 * spec.cost_max * _common_effects(world.grammar, spec.cost_spread, rng)
        best = oracle.optimum.policy
        excess = 0.1 * spec.cost_max
        shift = _root(
            lambda value, raw=raw, best=best, excess=excess: float(  # type: ignore[misc]
                world.oracle.expectations(best, bounded(raw + value, spec.cost_max, 1.0)) - at_most - excess
            ),
            3.0 * spec.cost_max,
        )
        if shift is None:
            return None
        limits = (*limits, Limit(f"cost-{number + 2}", bounded(raw + shift, spec.cost_max, 1.0), at_most))
    if limits:
        oracle = replace(world.oracle, further=limits)
        margin, _ = largest_margin(
            np.stack([oracle.cost - oracle.threshold, *(limit.cost - limit.threshold for limit in limits)]),
            oracle.prior,
            oracle.reference > 0,
        )
        if margin <= 0 or min(oracle.optimum.further_multipliers) <= 0:
            return None
    return limits


def _root(value: Callable[[float], float], largest: float) -> float | None:
    """Where a function that rises crosses 0 within [-largest, largest]; None where it does not."""
    if value(-largest) >= 0 or value(largest) <= 0:
        return None
    return float(brentq(value, -largest, largest, xtol=1e-10))
