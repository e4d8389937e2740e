"""What runs execute against the written formula: the bonus in the loss, the cost stage's temperature, its seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pddpo_lab.methods.loss_bonus import LossBonuses
from pddpo_lab.methods.stages import weighed_objective
from pddpo_lab.worlds.tabular.parts import TabularTrainer
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.algorithms.stages import lagrangian_objective, reward_objective
from pddpo_ray.config import BudgetRefit, TrainerConfig
from pddpo_ray.contracts import FitCommand, FitResult
from pddpo_ray.exploration.explorer import OptimisticExplorer
from pddpo_ray.journal import Journal
from pddpo_ray.parts.fitting import FitPlan, TrainerController
from pddpo_ray.records import HARM, LabelledPair, Objective, Pair, PairRow, PolicyVersion, Response, Verdict
from pddpo_ray.storage.artifacts import ArtifactStore

WORLD = trap_world()
VERSION = PolicyVersion(1, "v1", "1" * 64, "v1")
ANSWERS = [[WORLD.response(x, y, f"{x}-{y}") for y in range(8)] for x in range(4)]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", "run", create={}) as opened:
        yield opened


def features(responses: Sequence[Response]) -> NDArray[np.float64]:
    """Answer 0 and answer 1 have directions of their own, all others share one."""
    rows = np.zeros((len(responses), 3))
    for row, response in zip(rows, responses, strict=True):
        row[min(response.token_ids[0], 2)] = 1.0
    return rows


def explorer() -> OptimisticExplorer:
    baseline = {ANSWERS[x][0].prompt.id: [ANSWERS[x][0], ANSWERS[x][2]] for x in range(4)}
    return OptimisticExplorer(features=features, baseline=baseline, beta=0.1, multiplier=lambda: 0.5, seed=1)


def bonus(answer: int, compared: int) -> float:
    """k sqrt(phi' (I / s0^2 + w n v v')^-1 phi), k = 1.5, s0 = 2, w = 1/4, by the inverse; v = phi(0) - phi(1)."""
    eye = np.eye(3)
    v = eye[0] - eye[1]
    phi = eye[min(answer, 2)] - (eye[0] + eye[2]) / 2
    return float(1.5 * np.sqrt(phi @ np.linalg.inv(eye / 4.0 + 0.25 * compared * np.outer(v, v)) @ phi))


def test_the_margin_of_a_run_is_the_bonus_of_the_rejected_answer_less_that_of_the_chosen_one(journal: Journal) -> None:
    """The reward stream compared answers 0 and 1 five times, the cost stream never."""
    source = explorer()
    control = LossBonuses(explorer(), journal, source, answers=ANSWERS[0])
    source.update([Pair(f"seen-{i}", ANSWERS[1][0], ANSWERS[1][1]) for i in range(5)], streams=("reward",))
    pair = Pair("p", ANSWERS[0][0], ANSWERS[0][1])
    labelled = [LabelledPair(pair, Verdict.FIRST, {HARM: Verdict.FIRST})]
    prompt = pair.prompt.token_ids
    forward, backward = PairRow("p", prompt, (0,), (1,)), PairRow("p", prompt, (1,), (0,))
    for stage, compared in (("reward", 5), ("cost", 0)):
        found = control.loss_bonus(stage, [forward, backward], labelled)  # type: ignore[arg-type]
        expected = bonus(1, compared) - bonus(0, compared)
        assert abs(expected) > 0.1
        assert found.margins == pytest.approx((expected, -expected))
        assert found.answers == pytest.approx([bonus(y, compared) for y in range(8)])


def test_pairs_of_a_round_enter_both_the_choice_and_the_bonus_in_the_loss(journal: Journal) -> None:
    chooser, source = explorer(), explorer()
    control = LossBonuses(chooser, journal, source)
    control.update([Pair(f"seen-{i}", ANSWERS[1][0], ANSWERS[1][1]) for i in range(5)])
    for one in (chooser, source):
        for values in one.bonuses([ANSWERS[0][1], ANSWERS[0][0]]):
            assert values == pytest.approx([bonus(1, 5), bonus(0, 5)])


def test_the_cost_stage_of_a_run_has_temperature_beta_over_the_multiplier() -> None:
    for beta, multiplier, temperature in ((0.1, 0.5, 0.2), (0.1, 4.0, 0.025), (0.5, 0.25, 2.0)):
        assert lagrangian_objective(VERSION, multiplier, beta).temperature == pytest.approx(temperature)
    assert reward_objective(VERSION, 0.3).temperature == 0.3


class Remembering(TabularTrainer):
    """The tabular trainer, which keeps the commands that it executed."""

    def execute(self, command: FitCommand) -> FitResult:
        self.commands = [*getattr(self, "commands", []), command]
        return super().execute(command)


def commands_of(tmp_path: Path, seed: int) -> list[FitCommand]:
    """A reward and a cost fit in each of three rounds, with five older rows in every one."""
    backend = Remembering(WORLD, ArtifactStore(tmp_path / f"store-{seed}"))
    plan = FitPlan(TrainerConfig(refit=BudgetRefit(rows=5, per_new=0.0)))
    rows = [PairRow(f"p{i}", (i % 4,), (0,), (1,), round=i // 20) for i in range(60)]
    with Journal.open(tmp_path / f"journal-{seed}.sqlite", "run", create={}) as journal:
        trainer = TrainerController(backend, journal, plan, seed=seed)
        journal.add_version(backend.reference, "reference")
        for _ in journal.rounds(3):
            policy = trainer.fit(Objective("reward", backend.reference, 0.1), rows)
            trainer.fit(lagrangian_objective(policy, 0.5, 0.1), rows)
    return backend.commands


def test_fits_of_different_rounds_and_stages_draw_differently(tmp_path: Path) -> None:
    """And so do runs of different seeds, whose fits have the same names."""
    commands = [command for seed in (7, 8) for command in commands_of(tmp_path, seed)]
    assert len({command.seed for command in commands}) == 12
    older = [tuple(row.id for row in command.rows if row.round < 2) for command in commands]
    assert all(len(ids) == 5 for ids in older)
    assert len(set(older)) == 12


def test_scores_of_weighed_objectives_reach_as_far_as_reward_and_cost_together() -> None:
    from pddpo_ray.algorithms.stages import Sizes

    sizes = Sizes(1, 1, 1, 1, beta=0.1, reward_max=2.0, cost_max=3.0)
    objective = weighed_objective(VERSION, 0.5, sizes)
    assert (objective.score_max, objective.temperature, objective.multiplier) == (3.5, 0.1, None)
