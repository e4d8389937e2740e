"""adaLag's single steps in a network: a new AdamW each, or one whose moments are carried (registered.yaml, `network`).

python -m lab.studies.theory_choices.network run     # twelve worlds, a minute of one core; a broken study continues
python -m lab.studies.theory_choices.network table   # the table of README.md from what is there
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from lab.studies.exploration.run import with_interval
from lab.studies.study import FOLDER, Results, command, keep, known, registration, seeds_between
from lab.studies.theory_choices.run import BATCH, FIRST, UPPER, WINDOW, WORLDS, cost_pairs
from pddpo_lab.worlds.tabular.world import TabularWorld, draw_answers
from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.records import Array, CostEstimate, Objective, PairRow, PolicyVersion
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.estimates.cost_estimate import mean_with_error
from pddpo_ray.theory.multipliers.cost_stage import cost_temperature
from pddpo_ray.theory.multipliers.dual import DualState, LogMultiplier, ascend, limit_state
from pddpo_ray.theory.seeds import generator, seed_of
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.local import LocalTrainer, store_reference
from pddpo_ray.training.passes.log_probs import ResponseScorer
from pddpo_ray.version import __version__
from pddpo_ray.worlds.oracle import Oracle

RESULTS = FOLDER / "theory_choices" / "network.json"
MACHINE = "one core of an Intel Xeon with AVX-512, shared with other work"
BETA, PROMPT, ANSWER = 0.5, 1, 8
"""Temperature; the token of the first prompt, and of the first answer."""


def registered() -> Mapping[str, Any]:
    """What was registered."""
    found: Mapping[str, Any] = registration("theory_choices")["network"]
    return found


def run(out: Path) -> None:
    """Every arm and rate on the tuning worlds, then each arm at its own rate on the others; range by range."""
    plan = registered()
    for rates in plan["rates"].values():
        _play(plan["tuning"], out, [name_of(arm, rate) for arm in plan["arms"] for rate in rates])
        _play(plan["worlds"], out, list(chosen(known(out), rates).values()))


def _play(ends: Mapping[str, Sequence[int]], out: Path, names: Sequence[str]) -> None:
    said = {"date": datetime.now(UTC).date().isoformat(), "machine": MACHINE, "version": __version__}
    for kind, between in ends.items():
        for seed in seeds_between(between):
            missing = [name for name in names if name not in known(out).get(f"{kind}/{seed}", {})]
            if missing:
                with begun(WORLDS[kind](seed, beta=BETA), seed) as start:
                    gaps = {name: ada_lag(start, name, seed) for name in missing}
                    gaps["before"] = float(start.oracle.gap(start.table(start.policy)))
                keep(out, f"{kind}/{seed}", said | {name: round(gap, 6) for name, gap in gaps.items()})


def name_of(arm: str, rate: float) -> str:
    return f"{arm} {rate:g}"


# --- a world in a network -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Begun:
    """A world whose reward policy and first policy are fitted."""

    trainer: LocalTrainer
    oracle: Oracle
    rows: tuple[PairRow, ...]
    reward: PolicyVersion
    policy: PolicyVersion

    def table(self, policy: PolicyVersion) -> Array:
        return table_of(self.trainer, policy, self.oracle.reward.shape)


@contextmanager
def begun(world: TabularWorld, seed: int) -> Iterator[Begun]:
    """The reference is a network with random weights; its pairs are of two answers each, evenly from all."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = world.shape
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=ANSWER + shape[1], initializer_range=0.25, **sizes))
    with TemporaryDirectory() as folder:
        model.save_pretrained(Path(folder) / "model")
        store = ArtifactStore(Path(folder) / "artifacts", shared=True)
        reference = store_reference(store, Path(folder) / "model")
        trainer = LocalTrainer(TorchEngine(ResponseScorer(model)), store, reference)
        oracle = replace(world.oracle, reference=table_of(trainer, reference, shape))
        ends = [oracle.expectations(oracle.policy(multiplier), oracle.cost) for multiplier in (0.0, FIRST)]
        oracle = replace(oracle, threshold=float(np.mean(ends)))
        better = rows_of(-oracle.reward, generator(seed, "reward"))
        rows = rows_of(oracle.cost, generator(seed, "cost"))
        first = registered()["first"]
        reward = fitted(trainer, Objective("reward", reference, BETA), better, reference, first, seed)
        policy = fitted(trainer, lagrangian(reward, FIRST), rows, reward, first, seed)
        yield Begun(trainer, oracle, rows, reward, policy)


def rows_of(cost: Array, draws: np.random.Generator) -> tuple[PairRow, ...]:
    x, cheap, costly = cost_pairs(cost, draws)
    return tuple(
        PairRow(str(row), (PROMPT + prompt,), (ANSWER + good,), (ANSWER + bad,))
        for row, (prompt, good, bad) in enumerate(zip(x.tolist(), cheap.tolist(), costly.tolist(), strict=True))
    )


def lagrangian(base: PolicyVersion, multiplier: float) -> Objective:
    return Objective("cost", base, cost_temperature(BETA, multiplier), multiplier)


def fitted(
    trainer: LocalTrainer,
    objective: Objective,
    rows: tuple[PairRow, ...],
    start: PolicyVersion,
    how: Mapping[str, float],
    seed: int,
    moments: PolicyVersion | None = None,
) -> PolicyVersion:
    """The version after some steps from `start`; it keeps its moments for the fit that begins with them."""
    steps, rate, number = int(how["steps"]), how["rate"], start.number + 1
    settings = FitSettings(
        steps=steps, learning_rate=rate, batch_pairs=BATCH, warmup=0.0, schedule="constant", support=0.0
    )
    asked = FitCommand(
        number, Start(start, moments=moments), objective, rows, settings, seed_of(seed, objective.stage, number),
        f"{objective.stage}-{number}", keeps_moments=True,
    )  # fmt: skip
    return trainer.execute(asked).version


def table_of(trainer: LocalTrainer, policy: PolicyVersion, shape: tuple[int, ...]) -> Array:
    """Chances among the world's answers. -> [prompts, answers]"""
    texts = [((PROMPT + x,), (ANSWER + y,)) for x, y in np.ndindex(*shape)]
    logs = trainer.score(policy, texts).reshape(shape)
    weights: Array = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


# --- adaLag ---------------------------------------------------------------------------------------------------------


def ada_lag(start: Begun, name: str, seed: int) -> float:
    """Rounds of a dual step and a single step of the cost fit, by "ARM RATE". -> gap of the last policy"""
    arm, rate = name.split()
    oracle, draws, policy, newest = start.oracle, generator(seed, "adalag"), start.policy, np.zeros(0)
    rule = LogMultiplier(0.5)
    state = DualState((limit_state("cost", rho=UPPER / 2, rule=rule, first=FIRST, limit=oracle.threshold, lower=0.05),))
    for _ in range(registered()["steps"]):
        prompts = draw_answers(oracle.prior[None], draws.random((BATCH, 1)))[:, 0]
        answers = draw_answers(start.table(policy)[prompts], draws.random(BATCH))
        newest = np.append(newest, oracle.cost[prompts, answers])[-WINDOW:]
        state, _ = ascend(state, CostEstimate(*mean_with_error(newest), len(newest), 1, "cost_model"))
        how = {"steps": 1, "rate": float(rate)}
        moments = policy if arm == "carried" else None
        objective = lagrangian(start.reward, state.multiplier)
        policy = fitted(start.trainer, objective, start.rows, policy, how, seed, moments)
    return float(oracle.gap(start.table(policy)))


# --- what is shown --------------------------------------------------------------------------------------------------


def rows_between(results: Results, ends: Mapping[str, Sequence[int]]) -> list[Mapping[str, Any]]:
    """The kept worlds of the registered seeds."""
    keys = [f"{kind}/{seed}" for kind, between in ends.items() for seed in seeds_between(between)]
    return [results[key] for key in keys if key in results]


def chosen(results: Results, rates: Sequence[float]) -> dict[str, str]:
    """Each arm at the rate of its lowest mean gap on the tuning worlds."""
    plan = registered()
    rows = rows_between(results, plan["tuning"])

    def gap(name: str) -> float:
        return float(np.mean([row[name] for row in rows]))

    return {arm: min((name_of(arm, rate) for rate in rates), key=gap) for arm in plan["arms"]}


def table(results: Results) -> str:
    """For each range of rates the mean gaps on the tuning worlds, those at the chosen rates on the others, and the
    registered difference."""
    plan = registered()
    tuning, rows = (rows_between(results, plan[ends]) for ends in ("tuning", "worlds"))
    parts = [f"before the single steps: {np.mean([row['before'] for row in rows]):.3f}, {len(rows)} worlds"]
    for about, rates in plan["rates"].items():
        of = chosen(results, rates)
        shown = " | ".join(f"{rate:g}" for rate in rates)
        lines = [f"| {about} | {shown} | chosen | gap |", "|---" * (len(rates) + 3) + "|"]
        for arm, name in of.items():
            means = " | ".join(f"{np.mean([row[name_of(arm, rate)] for row in tuning]):.3f}" for rate in rates)
            lines.append(f"| {arm} | {means} | {name.split()[1]} | {np.mean([row[name] for row in rows]):.3f} |")
        difference = np.array([row[of["carried"]] - row[of["fresh"]] for row in rows])
        parts.append("\n".join([*lines, "", f"carried less fresh: {with_interval(difference)}"]))
    return "\n\n".join(parts)


if __name__ == "__main__":
    command(__doc__ or "", RESULTS, run, table)
