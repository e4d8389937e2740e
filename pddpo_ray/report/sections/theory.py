"""The theory panel: how far the run is from the theorem's bound, and which assumptions hold (paper.md §11).

The bound here is the part that the steps of the multiplier cause. With exact fits and estimates, projected ascent
gives, for every multiplier u in [0, 2 rho],

    sum_k (u - lambda_k) g_k  <=  sum_k (|u - lambda_k|^2 - |u - lambda_(k+1)|^2) / (2 eta_k) + eta_k C'^2 / 2

and u = 0 bounds the regret in f, u = 2 rho the gap. What fits and estimates get wrong comes on top of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pddpo_ray.report.run_data import RunData
from pddpo_ray.theory.estimates.estimate_interval import interval

State = Literal["met", "not met", "not checkable"]
PROJECTED_RULES = ("projected", "anytime")


@dataclass(frozen=True)
class Assumption:
    """One premise of the theorem, whether this run meets it, and how one can tell."""

    name: str
    state: State
    why: str


@dataclass(frozen=True)
class Rate:
    """Averages over the rounds so far, beside the theorem's bound after as many rounds (None where it is not known).

    `own_rule` is False where the run's rule is not the theorem's: then the bound is the one that the paper's rule would
    have with the same first multiplier and number of rounds.
    """

    rounds: int
    violation: float | None
    violation_bound: float | None
    regret: float | None
    regret_bound: float | None
    own_rule: bool
    estimate: float
    estimate_ends: tuple[float, float] | None
    """95 % interval of the mean violation over the rounds; None: bounds unknown."""


def ascent_bound(first: float, target: float, upper: float, etas: Sequence[float], cost_bound: float) -> float:
    """Bound on the mean of (target - lambda_k) g_k over the rounds whose step sizes are given, |g_k| <= cost_bound.

    For a constant eta it is (target - first)^2 / (2 eta K) + eta C'^2 / 2. Where the step shrinks, the squared distance
    that is still possible counts again by how much 1/eta grew.
    """
    distance = max(target, upper - target) ** 2
    total = (target - first) ** 2 / (2.0 * etas[0])
    for before, now in itertools.pairwise(etas):
        total += max(0.5 / now - 0.5 / before, 0.0) * distance
    return (total + 0.5 * cost_bound**2 * sum(etas)) / len(etas)


def rate_so_far(run: RunData) -> Rate | None:
    """Violation and regret averaged over the finished rounds, and the theorem's rate. None before the first step."""
    steps = run.steps
    if not steps:
        return None
    optimum = run.point("optimum")
    g_values = [value for _, value in run.series("exact/g_policy")]
    f_values = [value for _, value in run.series("exact/f_policy")]
    regret = optimum.f - sum(f_values) / len(f_values) if optimum is not None and f_values else None
    violation = run.limits[0].scale * sum(g_values) / len(g_values) if g_values else None
    gaps = [step.estimate.value - run.threshold for step in steps]
    own_rule = _rule(run) in PROJECTED_RULES and all(step.eta > 0 for step in steps)
    bounds: tuple[float | None, float | None] = (None, None)
    first = steps[0].multiplier_before
    if run.rho and run.cost_max and first > 0:
        cost_bound, upper = run.cost_max + abs(run.threshold), 2.0 * run.rho
        paper_eta = first / (cost_bound * math.sqrt(run.total))
        etas = [step.eta if own_rule else paper_eta for step in steps]
        bounds = (
            ascent_bound(first, upper, upper, etas, cost_bound) / run.rho,
            ascent_bound(first, 0.0, upper, etas, cost_bound),
        )
    return Rate(len(steps), violation, bounds[0], regret, bounds[1], own_rule, sum(gaps) / len(gaps), _mean_ends(run))


def _mean_ends(run: RunData) -> tuple[float, float] | None:
    """Interval of the mean violation over the answers of all rounds. The uncertainty from few labels per answer stays:
    it does not average out."""
    estimates = [step.estimate for step in run.steps]
    error = math.sqrt(sum(item.standard_error**2 for item in estimates)) / len(estimates)
    value = sum(item.value for item in estimates) / len(estimates)
    answers, labels = sum(item.responses for item in estimates), min(item.labels_each for item in estimates)
    whole = replace(estimates[-1], value=value, standard_error=error, responses=answers, labels_each=labels, low=None)
    ends = interval(whole)
    return None if ends is None else (ends[0] - run.threshold, ends[1] - run.threshold)


def assumptions(run: RunData) -> list[Assumption]:
    """The premises of the theorem, in its order."""
    return [
        _bounded_scores(run),
        _labels_from_truth(run),
        _slater(run),
        _rho(run),
        _step_rule(run),
        _own_policy(run),
        _enough_labels(run),
        _exact_fits(run),
        _collection(run),
        _coverage(run),
    ]


def half_width(run: RunData, factor: float) -> float | None:
    """Half of the newest estimate's 95 % interval, had `factor` times as many answers been labelled."""
    if not run.steps:
        return None
    newest = run.steps[-1].estimate
    number, error = round(newest.responses * factor), newest.standard_error / math.sqrt(factor)
    ends = interval(replace(newest, responses=number, standard_error=error))
    return None if ends is None else 0.5 * (ends[1] - ends[0])


def _bounded_scores(run: RunData) -> Assumption:
    name = "rewards and costs are bounded by R and C"
    if run.known_world:
        return Assumption(name, "met", "the world's tables are clipped to them")
    return Assumption(name, "not checkable", "the true scores are not known")


def _labels_from_truth(run: RunData) -> Assumption:
    name = "labels follow Bradley-Terry and Bernoulli models of the true scores"
    if run.known_world and (run.recipe.get("feedback") or {}).get("kind") == "world":
        return Assumption(name, "met", "the world draws them so")
    return Assumption(name, "not checkable", "no model of these labellers is known")


def _slater(run: RunData) -> Assumption:
    name = "some policy is strictly below the limit"
    below = [number for number, value in run.series("exact/g_policy") if value < 0]
    if below:
        return Assumption(name, "met", f"the policy of round {below[-1]} is (exact)")
    for step in reversed(run.steps):
        ends = interval(step.estimate)
        if ends is not None and ends[1] < run.threshold:
            return Assumption(name, "met", f"the 95 % interval of round {step.round}'s estimate lies below it")
    return Assumption(name, "not checkable", "no policy so far is clearly below it")


def _rho(run: RunData) -> Assumption:
    name = "ρ is at least λ*, so λ can reach it"
    if run.rho is not None and run.multiplier_optimum is not None:
        holds = run.rho >= run.multiplier_optimum
        return Assumption(name, "met" if holds else "not met", f"ρ = {run.rho:.4g}, λ* = {run.multiplier_optimum:.4g}")
    if run.rho is not None and len(run.steps) >= 3:
        pressed = all(
            step.multiplier_after >= 2.0 * run.rho - 1e-12 and step.estimate.value > run.threshold
            for step in run.steps[-3:]
        )
        if pressed:
            return Assumption(name, "not met", "λ has sat at its upper end for three rounds, above the limit")
    return Assumption(name, "not checkable", "λ* is not known")


def _step_rule(run: RunData) -> Assumption:
    name = "λ moves by projected ascent with a step fixed in advance"
    rule = _rule(run)
    if rule not in PROJECTED_RULES:
        return Assumption(name, "not met", f"the rule is {rule}")
    standing = sum(step.eta == 0 for step in run.steps)
    if standing:
        return Assumption(name, "not met", f"λ stood still in {standing} rounds")
    etas = [step.eta for step in run.steps]
    if rule == "projected" and etas and max(etas) - min(etas) > 1e-12 * max(etas):
        return Assumption(name, "not met", "the cap by the costs' spread changed the step from round to round")
    return Assumption(name, "met", f"rule {rule}")


def _own_policy(run: RunData) -> Assumption:
    name = "each cost estimate is of the round's own policy"
    foreign = sum(labels.foreign for number, labels in run.labels.items() if number > 0)
    if foreign:
        return Assumption(name, "not met", f"{foreign} labelled answers were written by another version")
    if not run.steps:
        return Assumption(name, "not checkable", "there is no estimate yet")
    return Assumption(name, "met", "the journal names that version on every labelled answer")


def _enough_labels(run: RunData) -> Assumption:
    name = "each answer has its full number of labels"
    incomplete = sum(labels.incomplete for labels in run.labels.values())
    answers = sum(labels.answers for labels in run.labels.values())
    if incomplete:
        return Assumption(name, "not met", f"{incomplete} of {answers} answers have another number")
    if not answers and run.safety_labels:
        return Assumption(name, "not checkable", "the journal holds the limits' measured values, not single labels")
    if not answers:
        return Assumption(name, "not checkable", "there are no labels yet")
    return Assumption(name, "met", f"all {answers} answers")


def _exact_fits(run: RunData) -> Assumption:
    name = "every fit reaches the minimum of its loss over the bounded class"
    if run.policies == "tables":
        return Assumption(name, "met", "tables are fitted by box-constrained maximum likelihood")
    if run.policies == "log-linear":
        return Assumption(name, "not met", "fits are solved, but a normal prior stands in the place of the box")
    return Assumption(name, "not checkable", "a network is trained for a fixed number of steps")


def _collection(run: RunData) -> Assumption:
    name = "pairs come from the optimistic policy itself by a valid bonus (needed by online methods only)"
    explore = run.recipe.get("explore") or {}
    scale = f"k = {explore.get('scale', 1.5):g}"
    if explore.get("bonus") == "theorem":
        return Assumption(name, "not checkable", f"the draw is exact; whether {scale} is valid follows from the sizes")
    return Assumption(name, "not met", f"a few candidates stand for all answers; {scale} is no confidence set")


def _coverage(run: RunData) -> Assumption:
    name = "the offline pairs alone cover the best policy (needed by offline methods on tables only)"
    covered = run.gap("covered_only")
    if covered is None:
        return Assumption(name, "not checkable", "the best policy is not known")
    if covered > 0.01:
        return Assumption(name, "not met", f"the oracle on covered answers has gap {covered:.3g}")
    return Assumption(name, "met", f"the oracle on covered answers has gap {covered:.3g}")


def _rule(run: RunData) -> str:
    return str(((run.recipe.get("dual") or {}).get("rule") or {}).get("kind", "unknown"))
