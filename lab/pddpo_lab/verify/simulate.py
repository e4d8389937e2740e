"""Many seeds of one method at once on a tabular world.

A vectorised twin of the methods for experiments: the same pure functions (box MLE, tilted tables, bonuses,
clipped estimates, dual steps) on arrays with a leading seed axis S. Every draw is seeded by (seed, round, purpose), so
methods are compared on paired seeds. `tests/unit/math/test_verify.py` compares it with the trainer backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pddpo_lab.margins import score_margin
from pddpo_lab.methods.loss_bonus import bonus_margin
from pddpo_lab.mle import box_mle
from pddpo_lab.verify.formulas import one_hot_gram, printed_margin, theory_amplitude, theory_precision
from pddpo_lab.verify.methods import Method
from pddpo_lab.worlds.tabular.world import TabularWorld, draw_answers
from pddpo_ray.exploration.alternatives import elliptical
from pddpo_ray.exploration.design import inverse
from pddpo_ray.exploration.resampling import exact_base, resampling_weights
from pddpo_ray.records import HARM, Array, CostEstimate
from pddpo_ray.theory.estimates.cost_estimate import estimate_from_shares
from pddpo_ray.theory.multipliers.cost_stage import SKIP_SHARE, skips_cost_stage
from pddpo_ray.theory.multipliers.dual import DualState, Fixed, ProjectedFixed, ascend, limit_state
from pddpo_ray.worlds.oracle import Oracle

Counts = NDArray[np.int64]

S0 = 2.0
FISHER = 0.25


@dataclass(frozen=True, eq=False)
class Trace:
    """What each round of each seed gave. All arrays [S, K]; `policy` is what the method would return, `last` is the
    policy without bonus (equal to it with split roles)."""

    multiplier: Array
    estimate: Array
    standard_error: Array
    f_policy: Array
    g_policy: Array
    f_mixture: Array
    g_mixture: Array
    f_last: Array
    g_last: Array


@dataclass(eq=False)
class _State:
    wins_reward: Array
    wins_cost: Array
    reward: Array
    cost: Array
    duals: list[DualState]


def simulate(world: TabularWorld, method: Method, *, rounds: int, seeds: Sequence[int]) -> Trace:
    """Runs `rounds` rounds of every seed."""
    oracle = world.oracle
    state = _initial(world, method, rounds, seeds)
    rows = []
    total = np.zeros((len(seeds), *world.shape))
    for k in range(1, rounds + 1):
        multiplier = np.array([dual.multiplier for dual in state.duals])
        plain, optimistic = _policies(world, method, state, multiplier, rounds)
        policy = plain if method.split else optimistic
        estimates = [_estimate(oracle, method, table, seed, k) for table, seed in zip(policy, seeds, strict=True)]
        state.duals = [ascend(dual, estimate)[0] for dual, estimate in zip(state.duals, estimates, strict=True)]
        if method.online:
            _collect(world, method, state, plain, optimistic, multiplier, seeds, k)
        total += policy
        tables = np.stack([policy, total / k, plain])
        rows.append(
            np.concatenate(
                [
                    [multiplier, [e.value for e in estimates], [e.standard_error for e in estimates]],
                    np.stack([oracle.f_values(tables), oracle.g_values(tables)], axis=1).reshape(6, len(seeds)),
                ]
            )
        )
    return Trace(*np.moveaxis(np.array(rows), 0, 2))


# --- one round ---------------------------------------------------------------------------------------------------


def _initial(world: TabularWorld, method: Method, rounds: int, seeds: Sequence[int]) -> _State:
    oracle = world.oracle
    wins = [_offline_wins(world, seed) for seed in seeds]
    first = method.first_share * oracle.rho
    rule = ProjectedFixed(rounds=rounds, first=first, cost_max=oracle.cost_max) if method.ascends else Fixed()
    dual = limit_state("cost", rho=oracle.rho, rule=rule, first=first, limit=oracle.threshold)
    shape = (len(seeds), *world.shape)
    return _State(
        np.stack([reward for reward, _ in wins]),
        np.stack([cost for _, cost in wins]),
        np.zeros(shape),
        np.zeros(shape),
        [DualState((dual,)) for _ in seeds],
    )


def _policies(
    world: TabularWorld, method: Method, state: _State, multiplier: Array, rounds: int
) -> tuple[Array, Array]:
    """Tables of the policy without bonus and of the optimistic one. -> [S, X, Y] twice"""
    oracle = world.oracle
    if method.online or not state.reward.any():
        state.reward = box_mle(state.wins_reward, oracle.reward_max, start=state.reward)
        state.cost = box_mle(state.wins_cost, oracle.cost_max, start=state.cost)
    bonus_reward, bonus_cost = _bonuses(world, method, state, rounds)
    skip = np.array([skips_cost_stage(value, below=SKIP_SHARE * oracle.beta) for value in multiplier])
    weight = np.where(skip, 0.0, multiplier)[:, None, None]
    plain = oracle.tilted(state.reward, state.cost, weight)
    if method.behaviour in ("policy", "proposals"):
        return plain, plain
    cheaper, costlier = bonus_cost[..., None, :], bonus_cost[..., :, None]
    if method.printed:
        divisor = np.where(skip, 1.0, multiplier)[:, None, None, None]
        margin = printed_margin(cheaper, costlier, multiplier=divisor)
    else:
        margin = bonus_margin(cheaper, costlier)
    left = score_margin(margin, cheaper, costlier)
    # the corrected margin leaves nothing: the optimistic class has the likelihood's own scores
    cost = box_mle(state.wins_cost, oracle.cost_max, offsets=-left) if left.any() else state.cost
    return plain, oracle.tilted(state.reward + bonus_reward, cost - bonus_cost, weight)


def _bonuses(world: TabularWorld, method: Method, state: _State, rounds: int) -> tuple[Array, Array]:
    """Reward and cost bonus of every answer under the pairs so far. -> [S, X, Y] twice"""
    gram = one_hot_gram(state.wins_reward)
    eye = np.eye(world.shape[1])
    centred = np.broadcast_to(eye - world.baseline[:, None, :] if method.centred else eye, gram.shape)
    if method.theory is not None:
        reward, cost = (
            _theory(method, gram, centred, bound, rounds) for bound in (world.oracle.reward_max, world.oracle.cost_max)
        )
    elif method.fitted:
        reward, cost = (
            elliptical(eye / S0**2 + one_hot_gram(wins * information(scores)), centred, method.k)
            for wins, scores in ((state.wins_reward, state.reward), (state.wins_cost, state.cost))
        )
    else:
        reward = cost = elliptical(eye / S0**2 + FISHER * gram, centred, method.k)
    if method.loss_only:
        seen = np.diagonal(gram, axis1=-2, axis2=-1) > 0
        reward, cost = reward * seen, cost * seen
    return reward * method.reward_bonus, cost * method.cost_bonus


def information(scores: Array) -> Array:
    """sigma'(s_i - s_j), the Fisher information of a comparison at these scores. [..., Y] -> [..., Y, Y]"""
    chance = expit(scores[..., :, None] - scores[..., None, :])
    return np.asarray(chance * (1.0 - chance))


def _theory(method: Method, gram: Array, centred: Array, bound: float, rounds: int) -> Array:
    assert method.theory is not None
    constants = method.theory
    amplitude = theory_amplitude(
        score_max=bound,
        cells=gram.shape[-3] * gram.shape[-1],
        rounds=rounds,
        pairs_per_round=method.pairs_per_round,
        gamma=constants.gamma,
        delta=constants.delta,
    )
    matrix = theory_precision(gram, pairs_per_round=method.pairs_per_round, gamma=constants.gamma)
    bonus = elliptical(matrix, centred, amplitude)
    return bonus if constants.clip is None else np.minimum(bonus, constants.clip * bound)


def _estimate(oracle: Oracle, method: Method, policy: Array, seed: int, k: int) -> CostEstimate:
    if method.exact_cost:
        return CostEstimate(oracle.g(policy) + oracle.threshold, 0.0, method.responses, method.labels_each)
    generator = np.random.default_rng([seed, k, 1])
    prompts = draw_answers(oracle.prior[None], generator.random((method.responses, 1)))[:, 0]
    answers = draw_answers(policy[prompts], generator.random(method.responses))
    unsafe = generator.binomial(method.labels_each, expit(oracle.cost[prompts, answers]))
    shares = unsafe / method.labels_each
    return estimate_from_shares(shares, labels_each=method.labels_each, cost_max=oracle.cost_max)


def _collect(
    world: TabularWorld,
    method: Method,
    state: _State,
    plain: Array,
    optimistic: Array,
    multiplier: Array,
    seeds: Sequence[int],
    k: int,
) -> None:
    """New pairs (y from the behaviour policy, y' from the baseline) of every seed, added to the win counts."""
    for s, seed in enumerate(seeds):
        generator = np.random.default_rng([seed, k, 2])
        if method.behaviour == "resampled":
            pairs = _resampled_pairs(world, method, state, plain[s], float(multiplier[s]), s, generator)
        else:
            behaviour = optimistic[s]
            if method.behaviour == "thompson":
                behaviour = _thompson(world, method, state, float(multiplier[s]), s, generator)
            elif method.behaviour == "proposals":
                behaviour = (plain[s] + world.oracle.reference) / 2.0
            joint = world.oracle.prior[:, None, None] * behaviour[:, :, None] * world.baseline[:, None, :]
            pairs = generator.multinomial(method.pairs_per_round, joint.ravel() / joint.sum()).reshape(joint.shape)
        state.wins_reward[s] += _labelled(pairs, world.oracle.reward, generator)
        state.wins_cost[s] += _labelled(pairs, world.oracle.cost, generator)


def _thompson(
    world: TabularWorld, method: Method, state: _State, multiplier: float, s: int, generator: np.random.Generator
) -> Array:
    """Policy of one posterior sample of both scores. -> [X, Y]"""
    precision = np.eye(world.shape[1]) / S0**2 + FISHER * one_hot_gram(state.wins_reward[s])
    root = np.linalg.cholesky(inverse(precision))
    noise = method.k * np.einsum("xij,txj->txi", root, generator.standard_normal((2, *world.shape)))
    return world.oracle.tilted(state.reward[s] + noise[0], state.cost[s] + noise[1], multiplier)


def _resampled_pairs(
    world: TabularWorld,
    method: Method,
    state: _State,
    plain: Array,
    multiplier: float,
    s: int,
    generator: np.random.Generator,
) -> Array:
    """Pair counts with y drawn by optimistic resampling of n candidates. -> [X, Y, Y]"""
    own = slice(s, s + 1)
    one = _State(state.wins_reward[own], state.wins_cost[own], state.reward[own], state.cost[own], [])
    reward, cost = (bonus[0] for bonus in _bonuses(world, method, one, rounds=1))
    optimism = (reward + multiplier * cost) / world.oracle.beta
    counts = np.zeros((*world.shape, world.shape[1]))
    half = method.candidates // 2
    with np.errstate(divide="ignore"):
        base = exact_base(np.log(plain), np.log(world.oracle.reference))
    for x in generator.choice(world.shape[0], size=method.pairs_per_round, p=world.oracle.prior):
        tables = np.repeat(np.stack([plain[x], world.oracle.reference[x]]), [half, method.candidates - half], axis=0)
        drawn = draw_answers(tables, generator.random(method.candidates))
        weights, _, _ = resampling_weights(base[x, drawn], optimism[x, drawn])
        other = draw_answers(world.baseline[x][None], generator.random(1))[0]
        counts[x, generator.choice(drawn, p=weights), other] += 1.0
    return counts


def _labelled(pairs: Array | Counts, scores: Array, generator: np.random.Generator) -> Array:
    """Win counts of pairs [X, Y, Y] (first answer, second answer) under Bradley-Terry labels. -> [X, Y, Y]"""
    counts = pairs.astype(np.int64)
    first = generator.binomial(counts, expit(scores[:, :, None] - scores[:, None, :]))
    return np.asarray(first + np.swapaxes(counts - first, 1, 2), dtype=np.float64)


def _offline_wins(world: TabularWorld, seed: int) -> tuple[Array, Array]:
    """Reward and cost win counts of offline pairs: multinomial draws, or the world's rows. -> [X, Y, Y] twice"""
    generator = np.random.default_rng([seed, 0, 0])
    if world.offline_rows:
        return _row_wins(world, seed)
    joint = world.offline_joint
    pairs = np.reshape(generator.multinomial(world.offline_pairs, joint.ravel() / joint.sum()), joint.shape)
    return _labelled(pairs, world.oracle.reward, generator), _labelled(pairs, world.oracle.cost, generator)


def _row_wins(world: TabularWorld, seed: int) -> tuple[Array, Array]:
    reward, cost = np.zeros((2, *world.shape, world.shape[1]))
    for item in world.offline(seed):
        x, first = world.cell(item.pair.first)
        _, second = world.cell(item.pair.second)
        for wins, verdict in ((reward, item.helpful), (cost, item.label(HARM))):
            winner, loser = (first, second) if verdict == "first" else (second, first)
            wins[x, winner, loser] += 1.0
    return reward, cost
