"""What a fit is told: where it begins, which rows it sees, under which name, seed and learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pddpo_lab.worlds.tabular.parts import TabularTrainer
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.algorithms.stages import lagrangian_objective
from pddpo_ray.config import TrainerConfig
from pddpo_ray.config.sections.trainer import DeterminantRefit, EveryFit
from pddpo_ray.contracts import FitCommand, FitResult
from pddpo_ray.journal import Journal, VersionEntry
from pddpo_ray.parts.dual_step import DualController, Estimates, LocalDual
from pddpo_ray.parts.fitting import FitPlan, TrainerController, previous_fit
from pddpo_ray.records import CostEstimate, Objective, PairRow, PolicyVersion
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.multipliers.dual import DualState, ProjectedFixed, limit_state
from pddpo_ray.theory.refit import full_rounds, limit_rows

WORLD = trap_world()
ROWS = [PairRow(f"p{i}", (i % 4,), (0,), (1,), round=i // 20) for i in range(60)]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", "run", create={}) as opened:
        yield opened


class Remembering(TabularTrainer):
    """The tabular trainer, which keeps the commands that it executed."""

    def execute(self, command: FitCommand) -> FitResult:
        self.commands = [*getattr(self, "commands", []), command]
        return super().execute(command)


def commands_of(journal: Journal, tmp_path: Path, plan: FitPlan, logdets: dict[int, float]) -> list[FitCommand]:
    """Reward and cost fits of three rounds at multipliers .5, .25 and .2; a round learns of `logdets` at its end."""
    backend = Remembering(WORLD, ArtifactStore(tmp_path / "store"))
    trainer = TrainerController(backend, journal, plan, seed=7)
    journal.add_version(backend.reference, "reference")
    for number in journal.rounds(3):
        rows = [row for row in ROWS if row.round < number]
        policy = trainer.fit(Objective("reward", backend.reference, 0.1), rows)
        trainer.fit(lagrangian_objective(policy, (0.5, 0.25, 0.2)[number - 1], 0.1), rows)
        if number in logdets:
            journal.add_metrics({"explore/logdet": logdets[number]})
    return backend.commands


def test_fits_begin_where_the_last_rounds_ended(journal: Journal, tmp_path: Path) -> None:
    """A reward fit at the last one; a cost fit at its base, with the last cost part at the ratio of multipliers."""
    first, later = {"learning_rate": 3.0, "steps": 9}, EveryFit(learning_rate=1.0, steps=4)
    trainer = TrainerConfig(fit=later, stages={"first_reward": first, "first_cost": first})
    commands = commands_of(journal, tmp_path, FitPlan(trainer), {})
    rewards, costs = commands[::2], commands[1::2]
    versions = {entry.version.name: entry.version for entry in journal.versions()}
    assert [command.result for command in rewards] == ["reward-1", "reward-2", "reward-3"]
    assert [command.result for command in costs] == ["policy-1", "policy-2", "policy-3"]
    assert [command.start.policy.name for command in rewards] == ["reference", "reward-1", "reward-2"]
    assert [command.start.policy.name for command in costs] == ["reward-1", "reward-2", "reward-3"]
    assert [command.start.plus for command in costs] == [None, versions["policy-1"], versions["policy-2"]]
    assert [command.start.minus for command in costs] == [None, versions["reward-1"], versions["reward-2"]]
    assert [command.start.scale for command in costs[1:]] == pytest.approx([0.5, 0.8])
    assert [command.settings.learning_rate for command in commands] == [3.0, 3.0, 1.0, 1.0, 1.0, 1.0]
    assert [command.settings.steps for command in commands] == [9, 9, 4, 4, 4, 4]


def test_a_fit_sees_all_pairs_again_once_exploration_learned_enough(journal: Journal, tmp_path: Path) -> None:
    """ln 2 = 0.69: round 2 knows a first value, round 3 only 0.5 more and so a budget of 5 + 20 older rows, not 40."""
    plan = FitPlan(TrainerConfig(refit=DeterminantRefit(rows=5, per_new=1.0)))
    commands = commands_of(journal, tmp_path, plan, {1: 1.0, 2: 1.5})
    assert [len(command.rows) for command in commands] == [20, 20, 40, 40, 45, 45]


def test_moments_are_those_of_the_same_stage_a_round_ago(journal: Journal, tmp_path: Path) -> None:
    """The cost stage of round 2 has a multiplier of 0 and is no fit."""
    backend = Remembering(WORLD, ArtifactStore(tmp_path / "store"))
    trainer = TrainerController(backend, journal, FitPlan(TrainerConfig(moments="carried")), seed=7)
    journal.add_version(backend.reference, "reference")
    for number in journal.rounds(4):
        policy = trainer.fit(Objective("reward", backend.reference, 0.1), ROWS)
        trainer.fit(lagrangian_objective(policy, (0.5, 0.0, 0.2, 0.2)[number - 1], 0.1), ROWS)
    begun = [(command.result, command.start.moments) for command in backend.commands]
    names = {result: None if moments is None else moments.name for result, moments in begun}
    assert names == {
        "reward-1": None, "policy-1": None, "reward-2": "reward-1", "reward-3": "reward-2",
        "policy-3": None, "reward-4": "reward-3", "policy-4": "policy-3",
    }  # fmt: skip
    assert all(command.keeps_moments for command in backend.commands)


def test_metrics_of_a_chain_of_cost_fits_are_told_apart(journal: Journal, tmp_path: Path) -> None:
    backend = TabularTrainer(WORLD, ArtifactStore(tmp_path / "store"))
    trainer = TrainerController(backend, journal, FitPlan(), seed=7, constraints=2)
    journal.add_version(backend.reference, "reference")
    for _ in journal.rounds(1):
        policy = trainer.fit(Objective("reward", backend.reference, 0.1), ROWS)
        for rows in (ROWS[:10], ROWS[:20]):
            policy = trainer.fit(lagrangian_objective(policy, 0.5, 0.1), rows)
    told = journal.metrics()[1]
    assert [told[f"fit/{name}_pairs"] for name in ("reward", "cost", "cost_2")] == [60.0, 10.0, 20.0]
    assert [entry.version.name for entry in journal.versions()] == ["reference", "reward-1", "policy-1-1", "policy-1"]


def test_the_previous_fit_is_the_same_constraints_of_the_last_round_that_got_so_far() -> None:
    def entry(number: int, round_: int, stage: str = "cost") -> VersionEntry:
        return VersionEntry(PolicyVersion(number, f"v{number}", "0" * 64, f"v{number}"), round_, stage, 1, 0.5, {}, ())

    entries = [entry(1, 0), entry(2, 1), entry(3, 1), entry(4, 2), entry(5, 0, "reward"), entry(6, 1, "reward")]
    asked = [(entries, "cost", place) for place in (1, 2, 3)]
    asked += [(entries, "reward", 0), (entries[4:5], "reward", 0), (entries[:1], "cost", 1)]
    fits = [previous_fit(*question) for question in asked]
    numbers = [None if fit is None else fit.version.number for fit in fits]
    assert numbers == [4, 3, None, 6, 5, None]


def test_learning_rates_never_leave_the_range_of_the_run() -> None:
    plan = FitPlan(TrainerConfig(fit=EveryFit(learning_rate=1.0), last_rate=0.25), rounds=3)
    rates = [plan.settings("reward", False, number).learning_rate for number in (0, 1, 2, 3, 9)]
    assert rates == pytest.approx([1.0, 1.0, 0.625, 0.25, 0.25])


def test_rows_within_the_budget_are_all_kept_with_their_margins() -> None:
    rows = [PairRow(f"r{i}", (0,), (1,), (2,), round=i // 2) for i in range(6)]
    margins = [float(i) for i in range(6)]
    for budget in (None, 4, 100):
        assert limit_rows(rows, margins, budget, np.random.default_rng(0)) == (tuple(rows), tuple(margins))
    kept, theirs = limit_rows(rows, margins, 2, np.random.default_rng(0))
    assert [int(row.id[1:]) for row in kept] == [int(margin) for margin in theirs]
    assert [row.weight for row in kept] == [2.0, 2.0, 1.0, 1.0]
    assert limit_rows([], [], 2, np.random.default_rng(0)) == ((), ())


def test_a_round_of_all_pairs_resets_what_counts_as_learned() -> None:
    """Exactly 1 + growth is enough; growth is measured from the last round of all pairs, not from the last round."""
    step = float(np.log1p(0.5))
    assert full_rounds(0.5, 6, {1: 0.0, 2: step, 3: 1.5 * step, 4: 1.9 * step, 5: 2.1 * step}) == [1, 2, 3, 6]


def test_a_step_of_the_dual_says_what_it_did(journal: Journal) -> None:
    rule = ProjectedFixed(rounds=4, first=1.0, cost_max=2.0)
    state = DualState((limit_state("cost", rho=2.0, rule=rule, first=1.0, limit=0.5),))
    owner = LocalDual(state)
    standing, moved = (
        owner.step(Estimates(number, (CostEstimate(0.9, 0.1, 9, 5),), held=held)).steps[0]
        for number, held in ((1, {"cost": "it waits"}), (2, {}))
    )
    eta = 1.0 / (2.5 * 2.0)
    assert (standing.multiplier_before, standing.multiplier_after, standing.eta) == (1.0, 1.0, 0.0)
    assert (standing.estimate.value, moved.estimate.value) == (0.9, 0.9)
    assert moved.multiplier_before == 1.0
    assert moved.eta == pytest.approx(eta)
    assert moved.multiplier_after == pytest.approx(1.0 + eta * 0.4)
    assert owner.multipliers(2) == {"cost": 1.0}
    assert owner.multipliers(3) == {"cost": moved.multiplier_after}
    dual = DualController(LocalDual(state), journal)
    for number in journal.rounds(3):
        given = {} if number == 1 else {"multiplier": 0.3} if number == 2 else {"multiplier": 0.3, "following": 0.4}
        dual.observe([CostEstimate(0.9, 0.1, 9, 5)], **given)
    told = [(step.multiplier_before, step.multiplier_after) for step in journal.dual_steps()]
    assert told == [(1.0, 1.0), (0.3, 0.3), (0.3, 0.4)]
