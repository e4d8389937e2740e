"""Claims about formulas, each against an independent exact answer (the experiments of docs/paper.md).

A check takes a world and returns one row: the claim in words, how it is measured, its value, what it is compared with,
the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, logsumexp, softmax

from pddpo_lab.methods.loss_bonus import bonus_margin
from pddpo_lab.mle import box_mle, gradient, negative_log_likelihood
from pddpo_lab.verify.formulas import printed_margin
from pddpo_lab.worlds.tabular.world import TabularWorld
from pddpo_ray.exploration.alternatives import elliptical
from pddpo_ray.exploration.resampling import exact_base
from pddpo_ray.records import Array, CostEstimate
from pddpo_ray.theory.estimates.cost_estimate import clipped_logit
from pddpo_ray.theory.losses.objectives import preference_loss
from pddpo_ray.theory.multipliers.cost_stage import cost_temperature
from pddpo_ray.theory.multipliers.dual import DualState, ProjectedFixed, ascend, limit_state
from pddpo_ray.worlds.oracle import Oracle, mixture


@dataclass(frozen=True)
class Check:
    """One row of `pddpo verify`."""

    in_words: str
    """What is claimed, as one sentence for a reader."""
    claim: str
    """The quantity that shows it."""
    value: float
    reference: str
    """What the value has to be."""
    passed: bool


def at_most(in_words: str, claim: str, value: float, limit: float) -> Check:
    """A row that passes where value <= limit."""
    return Check(in_words, claim, float(value), f"<= {limit:g}", bool(value <= limit))


def at_least(in_words: str, claim: str, value: float, limit: float) -> Check:
    """A row that passes where value >= limit."""
    return Check(in_words, claim, float(value), f">= {limit:g}", bool(value >= limit))


def multiplier_by_minimising_the_dual(world: TabularWorld) -> Check:
    oracle = world.oracle

    def dual(point: Array) -> tuple[float, Array]:
        return oracle.dual(float(point[0])), np.array([-oracle.g(oracle.policy(float(point[0])))])

    solution = minimize(
        dual, [1.0], jac=True, method="L-BFGS-B", bounds=[(0.0, None)], options={"ftol": 0.0, "gtol": 1e-13}
    )
    error = abs(float(solution.x[0]) - oracle.optimum.multiplier)
    return at_most(
        "The multiplier of the optimum is right: a second solver finds the same one.",
        "lambda* by bisection = minimiser of the dual (scipy)",
        error,
        1e-8,
    )


def no_duality_gap(world: TabularWorld) -> Check:
    optimum = world.oracle.optimum
    gap = abs(world.oracle.dual(optimum.multiplier) - optimum.f)
    return at_most(
        "Looking for the multiplier in place of the policy loses nothing.", "duality gap D(lambda*) - f*", gap, 1e-9
    )


def the_limit_is_kept_exactly(world: TabularWorld) -> Check:
    optimum = world.oracle.optimum
    slack = max(optimum.g, 0.0) + optimum.multiplier * abs(optimum.g)
    return at_most(
        "The optimal policy keeps its limit, and uses it up where the multiplier is above 0.",
        "violation and complementary slackness at pi*",
        slack,
        1e-8,
    )


def slater_bound(world: TabularWorld) -> Check:
    return at_least(
        "The multiplier of the optimum is at most ρ, so the range in which it is sought holds it.",
        "rho - lambda* (Slater)",
        world.oracle.rho - world.oracle.optimum.multiplier,
        0.0,
    )


def dual_slope(world: TabularWorld) -> Check:
    oracle, step = world.oracle, 1e-5
    errors = [
        abs((oracle.dual(at + step) - oracle.dual(at - step)) / (2 * step) + oracle.g(oracle.policy(at)))
        for at in (0.1, 0.5, 1.0, 2.0)
    ]
    return at_most(
        "The multiplier's step goes the right way: it follows the excess of the cost over the limit.",
        "D' = -g (finite differences)",
        max(errors),
        1e-5,
    )


def dual_curvature(world: TabularWorld) -> Check:
    oracle, step = world.oracle, 1e-5
    errors = [
        abs(
            (oracle.g(oracle.policy(at - step)) - oracle.g(oracle.policy(at + step))) / (2 * step)
            - oracle.cost_variance(oracle.policy(at)) / oracle.beta
        )
        for at in (0.1, 0.5, 1.0, 2.0)
    ]
    return at_most(
        "The multiplier's step has the right length: the curvature is the cost's variance over β.",
        "D'' = Var(cost) / beta (finite differences)",
        max(errors),
        1e-5,
    )


def covered_only_in_a_smaller_world(world: TabularWorld) -> Check:
    """Confining the policy equals confining the reference, up to beta E log of the reference's covered mass."""
    oracle = world.oracle
    mass = np.where(world.covered, oracle.reference, 0.0).sum(axis=1, keepdims=True)
    confined = np.where(world.covered, oracle.reference, 0.0) / mass
    smaller = Oracle(oracle.prior, confined, oracle.reward, oracle.cost, oracle.beta, oracle.threshold)
    expected = smaller.optimum.f + oracle.beta * float(oracle.prior @ np.log(mass[:, 0]))
    return at_most(
        "The oracle on covered answers is the optimum of a world that has those answers alone.",
        "best policy on covered answers = optimum of the confined world",
        abs(oracle.covered_only(world.covered).f - expected),
        1e-5,
    )


def multiplier_from_reference_samples(world: TabularWorld, samples: int = 20_000, seed: int = 0) -> Check:
    """MoCAN's explicit dual: self-normalised sums over reference samples, minimised by bisection on its slope."""
    oracle, generator = world.oracle, np.random.default_rng([seed, samples])
    each = samples // world.shape[0]
    counts = np.stack([generator.multinomial(each, row) for row in oracle.reference])

    def slope(multiplier: float) -> float:
        with np.errstate(divide="ignore"):
            logits = np.log(counts) + (oracle.reward - multiplier * oracle.cost) / oracle.beta
        return float(oracle.prior @ np.sum(softmax(logits, axis=1) * oracle.cost, axis=1)) - oracle.threshold

    low, high = 0.0, 2.0 * oracle.rho + 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    error = abs(low - oracle.optimum.multiplier)
    return at_most(
        "MoCAN finds the multiplier from answers of the reference alone.",
        "MoCAN's dual from 20,000 reference samples finds lambda*",
        error,
        0.01,
    )


def loss_is_the_long_form(world: TabularWorld) -> Check:
    """Softplus of minus the paper's printed expression with the reference in it, for arbitrary log-probabilities."""
    policy, reward_policy, reference = -torch.as_tensor(np.random.default_rng(5).gamma(4.0, 8.0, (3, 2, 256)))
    beta, multiplier = world.oracle.beta, 0.7
    implied = (beta * (reward_policy - reference) - beta * (policy - reference)) / multiplier
    long_form = torch.nn.functional.softplus(-(implied[1] - implied[0]))
    ratios = policy - reward_policy
    losses, _ = preference_loss(ratios[0], ratios[1], temperature=cost_temperature(beta, multiplier))
    error = float(((losses - long_form).abs() / (1.0 + long_form)).max())
    return at_most(
        "The cost stage's loss is the paper's long form and SACPO's, without the reference in it.",
        "cost-stage loss = SACPO = the paper's long form",
        error,
        1e-12,
    )


def free_policy_slope(*, printed: bool, beta: float = 0.5, multiplier: float = 1.3) -> tuple[float, float]:
    """Slope of beta * log ratio in the cost bonus at the free-policy minimiser, and its TV to the closed form."""
    generator = np.random.default_rng(11)
    base, cost = log_softmax(generator.normal(size=6)), generator.normal(size=6)
    bonus = np.abs(generator.normal(size=6))
    fits = [_free_fit(base, cost, values, beta, multiplier, printed) for values in (np.zeros(6), bonus)]
    response = beta * (fits[1] - fits[0])
    centred = bonus - bonus.mean()
    slope = float(centred @ (response - response.mean()) / (centred @ centred))
    closed = softmax(base - multiplier * (cost - bonus) / beta)
    return slope, float(0.5 * np.abs(np.exp(fits[1] + base) - closed).sum())


def _free_fit(base: Array, cost: Array, bonus: Array, beta: float, multiplier: float, printed: bool) -> Array:
    """Log ratios to the base that minimise the expected cost-stage loss over all policies. [Y] -> [Y]"""
    first, second = np.triu_indices(len(base), 1)
    cheap, costly = np.concatenate([first, second]), np.concatenate([second, first])
    chance = torch.as_tensor(expit(cost[costly] - cost[cheap]))
    values = torch.as_tensor(bonus)
    chosen, rejected = values[cheap], values[costly]
    margins = printed_margin(chosen, rejected, multiplier=multiplier) if printed else bonus_margin(chosen, rejected)

    def loss(logits: Array) -> tuple[float, Array]:
        parameters = torch.tensor(logits, requires_grad=True)
        ratios = torch.log_softmax(parameters, 0) - torch.as_tensor(base)
        losses, _ = preference_loss(
            ratios[cheap], ratios[costly], temperature=cost_temperature(beta, multiplier), margins=margins
        )
        total = (losses * chance).sum()
        (slope,) = torch.autograd.grad(total, parameters)
        return float(total.detach()), slope.numpy()

    solution = minimize(loss, base, jac=True, method="BFGS", options={"gtol": 1e-10, "maxiter": 5000})
    return np.asarray(log_softmax(solution.x) - base)


def corrected_bonus_loss(world: TabularWorld) -> Check:
    slope, distance = free_policy_slope(printed=False)
    error = max(abs(slope - 1.3), distance)
    return at_most(
        "The bonus in the cost stage's loss, as it runs here, leads to the optimistic policy.",
        "corrected bonus loss: slope +lambda and the closed form (free policy)",
        error,
        1e-6,
    )


def printed_bonus_loss(world: TabularWorld) -> Check:
    slope, _ = free_policy_slope(printed=True)
    return Check(
        "The bonus in that loss as the paper prints it has the wrong sign and size (erratum 1).",
        "printed bonus loss: slope in the bonus",
        slope,
        "-1, not +1.3 (paper.md erratum 1)",
        abs(slope + 1.0) < 1e-5,
    )


def box_mle_two_solvers(world: TabularWorld) -> Check:
    generator, errors = np.random.default_rng(3), []
    bound = world.oracle.reward_max
    for pairs in (10, 100, 1000):
        totals = generator.multinomial(pairs, np.full(64, 1 / 64), size=world.shape[0]).reshape(-1, 8, 8)
        scores = np.pad(world.oracle.reward, ((0, 0), (0, max(0, 8 - world.shape[1]))))[:, :8]
        first = generator.binomial(totals, expit(scores[:, :, None] - scores[:, None, :]))
        wins = (first + np.swapaxes(totals - first, 1, 2)).astype(np.float64)
        ours = box_mle(wins, bound)
        for x in range(len(wins)):
            solution = minimize(
                lambda s, data: (float(negative_log_likelihood(s, data)), gradient(s, data)),
                np.zeros(8), args=(wins[x],), jac=True, method="L-BFGS-B", bounds=[(-bound, bound)] * 8,
                options={"ftol": 0.0, "gtol": 1e-10, "maxiter": 20_000, "maxfun": 40_000, "maxcor": 30},
            )  # fmt: skip
            errors.append(float(np.abs(solution.x - ours[x]).max()))
    return at_most(
        "Scores are fitted to pairs rightly: a second solver finds the same ones.",
        "box MLE: projected Newton = L-BFGS-B",
        max(errors),
        1e-5,
    )


def multiplier_zero_is_the_reward_policy(world: TabularWorld) -> Check:
    oracle = world.oracle
    direct = softmax(np.log(np.maximum(oracle.reference, 1e-300)) + oracle.reward / oracle.beta, axis=1)
    distance = 0.5 * np.abs(oracle.tilted(oracle.reward, oracle.cost, 0.0) - direct).sum(axis=1).max()
    return at_most(
        "With multiplier 0 the policy is the reward policy.",
        "the limit lambda -> 0 is pi_r (total variation)",
        float(distance),
        1e-12,
    )


def exact_dual_run(oracle: Oracle, *, first: float, rounds: int) -> list[float]:
    """Multipliers of the theory's algorithm with exact scores and costs."""
    rule = ProjectedFixed(rounds=rounds, first=first, cost_max=oracle.cost_max)
    constraint = limit_state("cost", rho=oracle.rho, rule=rule, first=first, limit=oracle.threshold)
    state, multipliers = DualState((constraint,)), []
    for _ in range(rounds):
        multipliers.append(state.multiplier)
        cost = oracle.g(oracle.policy(state.multiplier)) + oracle.threshold
        state, _ = ascend(state, CostEstimate(cost, 0.0, 2, 1))
    return multipliers


def gap_bound(oracle: Oracle, *, first: float, rounds: float) -> float:
    """paper.md §11: (lambda_1 - 2 rho)^2 C' / (2 lambda_1 sqrt K) + lambda_1 C' / (2 sqrt K), C' = C + |d|."""
    scale = (oracle.cost_max + abs(oracle.threshold)) / math.sqrt(rounds)
    return (first - 2 * oracle.rho) ** 2 * scale / (2 * first) + first * scale / 2


def bounds_hold(world: TabularWorld) -> Check:
    """f-gap, violation and gap bounds over a grid of first multipliers and horizons; value: worst ratio."""
    oracle, worst = world.oracle, 0.0
    reach = oracle.cost_max + abs(oracle.threshold)
    for share in (0.25, 0.5, 0.75, 1.0, math.sqrt(2.0), 2.0):
        for rounds in (10, 30, 100):
            first = share * oracle.rho
            tables = np.stack([oracle.policy(value) for value in exact_dual_run(oracle, first=first, rounds=rounds)])
            gap = oracle.optimum.f - float(oracle.f_values(tables).mean())
            violation = float(oracle.g_values(tables).mean())
            root = math.sqrt(rounds)
            ratios = (
                gap / (first * reach / root),
                violation / (reach / (2 * oracle.rho * root) * ((first - 2 * oracle.rho) ** 2 / first + first)),
                (gap + 2 * oracle.rho * max(violation, 0.0)) / gap_bound(oracle, first=first, rounds=rounds),
            )
            worst = max(worst, *ratios)
    return at_most(
        "The theorem's bounds on the loss of reward, the violation and the gap hold for exact fits.",
        "bounds of paper.md §11 over 18 (lambda_1, K): worst share of the bound used",
        worst,
        1.0,
    )


def mixtures_gain(world: TabularWorld) -> Check:
    oracle = world.oracle
    tables = [oracle.policy(value) for value in (0.0, 0.3, 1.0, 3.0)]
    gain = oracle.f(mixture(tables)) - float(np.mean([oracle.f(table) for table in tables]))
    return at_least(
        "The mixture of several rounds is at least as good as these rounds are on average.",
        "f(marginal mixture) - mean f",
        gain,
        0.0,
    )


def unseen_responses_get_no_gradient(world: TabularWorld) -> Check:
    parameters = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    losses, _ = preference_loss(parameters[[0, 1, 1]], parameters[[2, 0, 2]], temperature=0.3)
    (slope,) = torch.autograd.grad(losses.sum(), parameters)
    return at_most(
        "A loss on pairs teaches nothing about answers that are in no pair.",
        "gradient on responses in no pair (free policy)",
        float(slope[3:].abs().max()),
        0.0,
    )


def baseline_assumption_fails(world: TabularWorld) -> Check:
    """Largest L with E(phi - phi')(phi - phi')^T >= L E phi phi^T for one-hot features: 0 (paper.md erratum 13)."""
    oracle = world.oracle
    largest = []
    for x in range(world.shape[0]):
        policy = np.full(world.shape[1], 1.0 / world.shape[1])
        other = world.baseline[x]
        moment = np.diag(policy) + np.diag(other) - np.outer(policy, other) - np.outer(other, policy)
        largest.append(eigh(oracle.prior[x] * moment, oracle.prior[x] * np.diag(policy), eigvals_only=True)[0])
    return at_most(
        "The paper's assumption on the baseline cannot be met (erratum 13).",
        "one-hot L_base",
        float(max(largest)),
        1e-12,
    )


def uncentred_floor(world: TabularWorld) -> Check:
    """||phi|| in (I + Sigma)^-1 with 1e9 pairs: stays at 1/sqrt(Y) uncentred (paper.md erratum 15); its error."""
    size = world.shape[1]
    precision = np.eye(size) + 1e9 * (size * np.eye(size) - np.ones((size, size))) / size
    floor = elliptical(precision, np.eye(size), 1.0)
    return at_most(
        "Without centred features a bonus remains after any number of pairs (erratum 15).",
        "uncentred norm at 1e9 pairs = 1/sqrt(Y)",
        float(np.abs(floor - 1 / math.sqrt(size)).max()),
        1e-4,
    )


def centred_norm_vanishes(world: TabularWorld) -> Check:
    size = world.shape[1]
    precision = np.eye(size) + 1e9 * (size * np.eye(size) - np.ones((size, size))) / size
    return at_most(
        "With centred features the bonus vanishes as pairs come in.",
        "centred norm at 1e9 pairs",
        float(elliptical(precision, np.eye(size) - 1 / size, 1.0).max()),
        1e-4,
    )


def resampling_converges(world: TabularWorld) -> Check:
    """Mean TV between n-candidate resampling and the exact optimistic policy; value: TV at n = 64 over TV at n = 4."""
    oracle, generator = world.oracle, np.random.default_rng(9)
    optimism = 0.1 * generator.uniform(0.0, 1.0, oracle.reference.shape) / oracle.beta
    policy = oracle.policy(oracle.rho)
    with np.errstate(divide="ignore"):
        base = exact_base(np.log(policy), np.log(oracle.reference))
    exact = softmax(np.log(np.maximum(policy, 1e-300)) + optimism, axis=1)
    distances = []
    for n in (4, 64):
        drawn = np.zeros_like(exact)
        for x in range(len(exact)):
            tables = [generator.multinomial(n // 2, row, size=4000) for row in (policy[x], oracle.reference[x])]
            counts = tables[0] + tables[1]
            with np.errstate(divide="ignore"):
                logits = np.log(counts) + base[x] + optimism[x]
            drawn[x] = np.exp(logits - logsumexp(logits, axis=1, keepdims=True)).mean(axis=0)
        distances.append(float(oracle.prior @ (0.5 * np.abs(drawn - exact).sum(axis=1))))
    return at_most(
        "Choosing among more candidates comes closer to the exact optimistic policy.",
        "optimistic resampling: TV to the exact policy, n = 64 over n = 4",
        distances[1] / distances[0],
        0.5,
    )


def clipped_labels_stay_finite(world: TabularWorld) -> Check:
    bound = world.oracle.cost_max
    error = float(np.abs(clipped_logit(np.array([0.0, 1.0]), bound) - np.array([-bound, bound])).max())
    return at_most("Labels that all agree give a finite cost.", "clipped logit of 0 and 1 is -C and +C", error, 1e-12)


FORMULAS: tuple[Callable[[TabularWorld], Check], ...] = (
    multiplier_by_minimising_the_dual,
    no_duality_gap,
    the_limit_is_kept_exactly,
    slater_bound,
    dual_slope,
    dual_curvature,
    covered_only_in_a_smaller_world,
    multiplier_from_reference_samples,
    loss_is_the_long_form,
    corrected_bonus_loss,
    printed_bonus_loss,
    box_mle_two_solvers,
    multiplier_zero_is_the_reward_policy,
    bounds_hold,
    mixtures_gain,
    unseen_responses_get_no_gradient,
    baseline_assumption_fails,
    uncentred_floor,
    centred_norm_vanishes,
    resampling_converges,
    clipped_labels_stay_finite,
)
