"""Three choices that the theory leaves open (lab/studies/theory_choices/registered.yaml).

python -m lab.studies.theory_choices.run run       # 20 tabular worlds in three studies; a broken study continues
python -m lab.studies.theory_choices.run table     # the tables of docs/paper.md from what is there
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit

from lab.studies.exploration.run import with_interval
from lab.studies.study import FOLDER, Results, command, keep, known, registration, seeds_between
from pddpo_lab.verify.methods import EXACT, SHIPPED
from pddpo_lab.verify.simulate import simulate
from pddpo_lab.worlds.tabular.world import TabularWorld, draw_answers, random_world, rare_world
from pddpo_ray.config import AnytimeRule, FitConfig, NewtonRule, ProjectedRule
from pddpo_ray.parts import dual_rules
from pddpo_ray.records import Array, CostEstimate
from pddpo_ray.theory.estimates.cost_estimate import estimate_from_shares, mean_with_error
from pddpo_ray.theory.losses.objectives import preference_loss
from pddpo_ray.theory.multipliers.cost_stage import cost_stage_scales, cost_temperature
from pddpo_ray.theory.multipliers.dual import DualState, LogMultiplier, Rule, RuleContext, ascend, limit_state
from pddpo_ray.theory.seeds import generator
from pddpo_ray.training.engine import adam_betas
from pddpo_ray.worlds.oracle import mixture

RESULTS = FOLDER / "theory_choices" / "results.json"
Study = Mapping[str, Any]
WORLDS: Mapping[str, Callable[..., TabularWorld]] = {"random": random_world, "rare": rare_world}
UPPER, FIRST, PAIRS, BATCH, WINDOW = 10.0, 2.0, 4000, 64, 512
"""adaLag's: end and start of the multiplier, pairs of costs, of one step, answers in the window."""


def registered() -> Mapping[str, Any]:
    """What was registered."""
    return registration("theory_choices")


def worlds(ends: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, TabularWorld, int]]:
    """Key, world and seed of each registered world."""
    for kind, between in ends.items():
        for seed in seeds_between(between):
            yield f"{kind}/{seed}", WORLDS[kind](seed), seed


def run(out: Path) -> None:
    """All arms of a world and study at once."""
    for name, study in registered()["studies"].items():
        for key, world, seed in worlds(registered()["worlds"]):
            if f"{name}/{key}" not in known(out):
                gaps = {arm: round(PLAYED[study["plays"]](world, arm, seed, study), 6) for arm in study["arms"]}
                keep(out, f"{name}/{key}", gaps)


def information(world: TabularWorld, arm: str, seed: int, study: Study) -> float:
    """Gap of the mixture with one way to draw and one information."""
    drawn, counted = arm.split(", ")
    method = replace(EXACT if drawn == "exact" else SHIPPED, fitted=counted == "fitted")
    trace = simulate(world, method, rounds=study["rounds"], seeds=[seed])
    return float(world.oracle.gap_values(trace.f_mixture, trace.g_mixture)[0, -1])


def moments(world: TabularWorld, arm: str, seed: int, study: Study) -> float:
    """Gap of adaLag's last policy at the arm's own rate."""
    rate = best_rate(arm, tuple(study["rates"]), study["steps"])
    return ada_lag(world, carried=arm == "carried", rate=rate, steps=study["steps"], seed=seed)


@cache
def best_rate(arm: str, rates: tuple[float, ...], steps: int) -> float:
    """The rate with the lowest mean gap on the tuning worlds."""
    tuning = registered()["tuning"]
    means = {
        rate: np.mean([ada_lag(world, carried=arm == "carried", rate=rate, steps=steps, seed=seed)
                       for _, world, seed in worlds(tuning)])
        for rate in rates
    }  # fmt: skip
    return min(means, key=lambda rate: float(means[rate]))


def ada_lag(world: TabularWorld, *, carried: bool, rate: float, steps: int, seed: int) -> float:
    """A policy solved at the first multiplier, then one AdamW step a round on its logits. -> gap of the last policy"""
    oracle, draws = world.oracle, generator(seed, "adalag")
    rows = cost_pairs(oracle.cost, draws)
    rule = LogMultiplier(0.5)
    state = DualState((limit_state("cost", rho=UPPER / 2, rule=rule, first=FIRST, limit=oracle.threshold, lower=0.05),))
    base = torch.as_tensor(np.log(oracle.policy(0.0)))
    logits = torch.tensor(np.log(oracle.policy(FIRST)), requires_grad=True)
    optimizer, newest = None, np.zeros(0)
    for _ in range(steps):
        policy = torch.softmax(logits, 1).detach().numpy()
        prompts = draw_answers(oracle.prior[None], draws.random((BATCH, 1)))[:, 0]
        answers = draw_answers(policy[prompts], draws.random(BATCH))
        newest = np.append(newest, oracle.cost[prompts, answers])[-WINDOW:]
        state, _ = ascend(state, CostEstimate(*mean_with_error(newest), len(newest), 1, "cost_model"))
        scale, share = cost_stage_scales(state.multiplier)
        if optimizer is None or not carried:
            optimizer = torch.optim.AdamW([logits], lr=rate, betas=adam_betas(FitConfig()), weight_decay=0.0)
        optimizer.param_groups[0]["lr"] = rate * share
        x, cheap, costly = rows[:, draws.integers(0, rows.shape[1], BATCH)]
        ratios = torch.log_softmax(logits, 1) - base
        temperature = cost_temperature(oracle.beta, state.multiplier)
        losses, _ = preference_loss(ratios[x, cheap], ratios[x, costly], temperature=temperature)
        optimizer.zero_grad()
        (scale * losses.mean()).backward()
        optimizer.step()
    return float(oracle.gap(torch.softmax(logits, 1).detach().numpy()))


def cost_pairs(cost: Array, draws: np.random.Generator) -> Array:
    """Pairs of two answers, evenly from all: prompt, cheaper and costlier answer. -> [3, n]"""
    prompts, answers = cost.shape
    x = draws.integers(0, prompts, PAIRS)
    first = draws.integers(0, answers, PAIRS)
    second = (first + draws.integers(1, answers, PAIRS)) % answers
    dearer = draws.random(PAIRS) < expit(cost[x, first] - cost[x, second])
    return np.stack([x, np.where(dearer, second, first), np.where(dearer, first, second)])


def beginning(world: TabularWorld, arm: str, seed: int, study: Study) -> float:
    """Gap of the mixture of a few rounds with exact fits, by a rule and its first multiplier."""
    oracle, (name, first), draws = world.oracle, arm.split(", "), generator(seed, "beginning")
    rounds = study["rounds"]
    context = RuleContext(oracle.beta, UPPER / 2, float(first), rounds, 2.0, oracle.threshold)
    rule = RULES[name](context)
    state = DualState((limit_state("cost", rho=UPPER / 2, rule=rule, first=float(first), limit=oracle.threshold),))
    tables = []
    for _ in range(rounds):
        tables.append(oracle.policy(state.multiplier))
        state, _ = ascend(state, estimated(world, tables[-1], draws))
    return float(oracle.gap(mixture(tables)))


RULES: Mapping[str, Callable[[RuleContext], Rule]] = {
    "projected": lambda run: dual_rules.projected(ProjectedRule(), run),
    "anytime": lambda run: dual_rules.anytime(AnytimeRule(), run),
    "newton": lambda run: dual_rules.newton(NewtonRule(), run),
}


def estimated(world: TabularWorld, policy: Array, draws: np.random.Generator) -> CostEstimate:
    """From 256 answers with 16 labels each, as gpu/o-pd-dpo-N has it."""
    prompts = draw_answers(world.oracle.prior[None], draws.random((256, 1)))[:, 0]
    answers = draw_answers(policy[prompts], draws.random(256))
    unsafe = draws.binomial(16, expit(world.oracle.cost[prompts, answers]))
    return estimate_from_shares(unsafe / 16, labels_each=16, cost_max=2.0)


PLAYED: Mapping[str, Callable[[TabularWorld, str, int, Study], float]] = {
    "information": information,
    "moments": moments,
    "beginning": beginning,
}


def table(results: Results) -> str:
    """Per study the mean gap of each arm, and the registered differences with their intervals."""
    parts = []
    for name, study in registered()["studies"].items():
        rows = [row for key, row in results.items() if key.startswith(f"{name}/")]
        if len(rows) < 2:
            continue
        against = {pair[0]: pair for pair in study["pairs"]}
        lines = [f"| {name} ({len(rows)} worlds) | gap | difference |", "|---|---|---|"]
        for arm in study["arms"]:
            gaps = np.array([row[arm] for row in rows])
            told = ""
            if arm in against:
                other = against[arm][1]
                told = f"{with_interval(gaps - np.array([row[other] for row in rows]))} against {other}"
            lines.append(f"| {arm} | {gaps.mean():.3f} | {told} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    command(__doc__ or "", RESULTS, run, table)
