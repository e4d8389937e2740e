"""What the trainer part tells its backend and writes down, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_lab.methods.merging import Merging
from pddpo_lab.methods.settings import PpoSettings
from pddpo_lab.policy_gradient.command import Critics, PpoCommand, PpoResult, ScoredAnswer
from pddpo_lab.policy_gradient.part import Updates
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.algorithms.stages import lagrangian_objective, reward_objective
from pddpo_ray.config import BudgetRefit, FitConfig, TrainerConfig
from pddpo_ray.contracts import FitCommand, FitResult, Start
from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal, VersionEntry
from pddpo_ray.parts.fitting import CARRY_MAX, LARGEST_CALL, FitPlan, TrainerController, start_of, with_steps
from pddpo_ray.records import LossOptimism, Objective, PairRow, PolicyVersion, Response
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.refit import limit_rows
from pddpo_ray.theory.seeds import seed_of

WORLD = trap_world()
REFERENCE = PolicyVersion(0, "reference", "0" * 64, "reference")
ROWS = [PairRow(f"r{i}", (i % 4,), (0,), (1,)) for i in range(9)]
ANSWERS = [WORLD.response(x, y, f"a{x}{y}") for x in range(2) for y in range(2)]


@dataclass
class Noting:
    """Makes a version of every command, and keeps the command."""

    commands: list[FitCommand] = field(default_factory=list)
    begun: list[FitCommand] = field(default_factory=list)
    updates: list[PpoCommand] = field(default_factory=list)

    def begin(self, command: FitCommand) -> None:
        self.begun.append(command)

    def execute(self, command: FitCommand) -> FitResult:
        self.commands.append(command)
        metrics = {"fit/loss": 0.25 * len(self.commands), "fit/seconds": 2.0}
        return FitResult(made(command.sequence, command.result), metrics, (11, 12))

    def perform(self, command: PpoCommand) -> PpoResult:
        self.updates.append(command)
        critics = Critics(("reward", f"r{command.sequence}"), ("cost", f"c{command.sequence}"))
        return PpoResult(made(command.sequence, command.result), {"ppo/kl": 0.5}, (13,), critics=critics)

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> np.ndarray:
        return np.arange(len(responses)) + 0.5

    def features(self, responses: Sequence[Response]) -> np.ndarray:
        return np.ones((len(responses), 3))

    def close(self) -> None:
        return


def made(number: int, name: str) -> PolicyVersion:
    return PolicyVersion(number, name, f"{number:064}", f"{name}-{number}")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", "run", create={}) as opened:
        opened.add_version(REFERENCE, "reference")
        yield opened


def controller(journal: Journal, backend: Noting, plan: FitPlan | None = None, **more: Any) -> TrainerController:
    return TrainerController(backend, journal, plan or FitPlan(), seed=7, **more)


def test_epochs_become_the_fewest_steps_that_see_every_row_so_often() -> None:
    given = FitConfig(epochs=2.0, batch_pairs=8, steps=30)
    assert [with_steps(given, rows).steps for rows in (1, 4, 5, 8, 9, 100)] == [1, 1, 2, 2, 3, 25]
    assert with_steps(given, 9).epochs is None
    assert with_steps(FitConfig(epochs=0.01, batch_pairs=8), 1).steps == 1
    steps = FitConfig(steps=30)
    assert with_steps(steps, 10_000) is steps


def entry(version: PolicyVersion, multiplier: float | None, base: int | None = 1) -> VersionEntry:
    return VersionEntry(version, 1, "cost", base, multiplier, {}, ())


def test_only_a_trained_cost_part_is_carried() -> None:
    """A multiplier exactly at the end of skipping was skipped; one that is not known, or a base, carries nothing."""
    one, two, three = made(1, "reward-1"), made(2, "policy-1"), made(3, "reward-2")
    versions, plan = {1: one, 2: two, 3: three}, FitPlan(skip_below=0.01)
    objective = Objective("cost", three, 0.2, 0.5)
    nothing = [entry(two, 0.01), entry(two, None), entry(two, 0.4, None)]
    assert [start_of(objective, previous, versions, plan) for previous in nothing] == [Start(three)] * 3
    assert start_of(objective, entry(two, None), versions, FitPlan()) == Start(three)
    found = start_of(objective, entry(two, 0.4), versions, plan)
    assert found == Start(three, plus=two, minus=one, scale=0.5 / 0.4)
    assert start_of(objective, entry(two, 0.25), versions, plan).scale == CARRY_MAX == 2.0
    assert start_of(Objective("cost", three, 0.2, None), entry(two, 0.4), versions, plan).scale == 0.0


@pytest.mark.parametrize("warm_start", ["carried", "previous", "reward"])
def test_warm_starts_of_cost_fits_leave_reward_fits_where_they_were(warm_start: str) -> None:
    plan = FitPlan(TrainerConfig(warm_start=warm_start))  # type: ignore[arg-type]
    one, two, three = made(1, "reward-1"), made(2, "policy-1"), made(3, "reward-2")
    versions = {1: one, 2: two, 3: three}
    assert start_of(Objective("reward", REFERENCE, 0.1), entry(one, None), versions, plan) == Start(one)
    assert start_of(Objective("reward", REFERENCE, 0.1), None, versions, plan) == Start(REFERENCE)
    expected = {
        "carried": Start(three, plus=two, minus=one, scale=1.0),
        "previous": Start(two),
        "reward": Start(three),
    }
    assert start_of(Objective("cost", three, 0.2, 0.4), entry(two, 0.4), versions, plan) == expected[warm_start]


def test_a_command_holds_the_whole_fit(journal: Journal) -> None:
    first = {"epochs": 3.0, "batch_pairs": 4, "learning_rate": 0.5}
    plan = FitPlan(TrainerConfig(stages={"first_reward": first}), rounds=1)
    backend = Noting()
    trainer = controller(journal, backend, plan)
    objective = reward_objective(REFERENCE, 0.1)
    margins = tuple(0.1 * i for i in range(9))
    for _ in journal.rounds(1):
        policy = trainer.fit(replace(objective, margins=margins), ROWS)
        trainer.fit(lagrangian_objective(policy, 0.5, 0.1), ROWS[:5])
    reward, cost = backend.commands
    assert (reward.sequence, reward.result, reward.rows) == (1, "reward-1", tuple(ROWS))
    assert reward.objective == replace(objective, margins=margins)
    assert (reward.settings.steps, reward.settings.epochs, reward.settings.learning_rate) == (7, None, 0.5)
    assert reward.seed == seed_of(7, 1, "reward", 0, "fit")
    assert reward.optimism is None
    assert (cost.sequence, cost.result, cost.rows, cost.objective.margins) == (2, "policy-1", tuple(ROWS[:5]), ())
    assert cost.seed == seed_of(7, 1, "cost", 1, "fit")
    entries = journal.versions()[1:]
    assert [e.version for e in entries] == [made(1, "reward-1"), made(2, "policy-1")]
    assert [(e.stage, e.base, e.multiplier, e.round) for e in entries] == [("reward", 0, None, 1), ("cost", 1, 0.5, 1)]
    assert [e.workers for e in entries] == [(11, 12)] * 2
    assert [e.metrics["fit/loss"] for e in entries] == [0.25, 0.5]
    assert journal.metrics()[1] == {
        "fit/reward_loss": 0.25, "fit/reward_seconds": 2.0, "fit/cost_loss": 0.5, "fit/cost_seconds": 2.0,
    }  # fmt: skip


def test_a_stage_that_is_not_trained_is_its_base_under_a_number_of_its_own(journal: Journal) -> None:
    """At the multiplier at which skipping ends it is skipped, just above it is not."""
    backend = Noting()
    trainer = controller(journal, backend, FitPlan(skip_below=0.05))
    for number in journal.rounds(2):
        policy = trainer.fit(reward_objective(REFERENCE, 0.1), ROWS)
        found = trainer.fit(lagrangian_objective(policy, (0.05, 0.0501)[number - 1], 0.1), ROWS)
        if number == 1:
            assert found == replace(policy, number=2, name="policy-1")
            assert journal.metrics()[1]["fit/cost_skipped"] == 1.0
            last = journal.versions()[-1]
            assert (last.base, last.multiplier, last.stage, last.workers) == (1, 0.05, "cost", ())
    assert [command.result for command in backend.commands] == ["reward-1", "reward-2", "policy-2"]


def test_the_next_reward_fit_begins_early_but_for_the_last_round(journal: Journal) -> None:
    backend = Noting()
    trainer = controller(journal, backend, FitPlan(rounds=2))
    for _ in journal.rounds(2):
        trainer.fit(reward_objective(REFERENCE, 0.1), ROWS)
        trainer.begin(reward_objective(REFERENCE, 0.1), ROWS)
    assert [command.result for command in backend.begun] == ["reward-2"]
    assert backend.begun == backend.commands[1:]
    assert backend.begun[0].settings == backend.commands[1].settings != backend.commands[0].settings


def test_the_optimistic_term_is_in_the_last_cost_fit_of_a_round_alone(journal: Journal) -> None:
    backend = Noting()
    trainer = controller(journal, backend, FitPlan(alpha=0.3), constraints=2, baseline=lambda: ANSWERS)
    for _ in journal.rounds(1):
        policy = trainer.fit(reward_objective(REFERENCE, 0.1), ROWS)
        for _ in range(2):
            policy = trainer.fit(lagrangian_objective(policy, 0.5, 0.1), ROWS)
    texts = tuple(((x,), (y,)) for x in range(2) for y in range(2))
    assert [command.optimism for command in backend.commands] == [None, None, LossOptimism(0.3, texts)]
    assert [command.result for command in backend.commands] == ["reward-1", "policy-1-1", "policy-1"]
    without = controller(journal, backend, FitPlan(alpha=0.3))
    for _ in journal.rounds(2):
        with pytest.raises(RunError, match="the XPO-style term needs answers of the baseline"):
            without.fit(lagrangian_objective(policy, 0.5, 0.1), ROWS)


@pytest.mark.parametrize("whole", [0.8, None])
def test_a_merged_policy_is_journalled_at_its_share_of_the_multiplier(
    journal: Journal, tmp_path: Path, whole: float | None
) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    tables = [{"log_probs": np.log(np.full((1, 2), 0.5)), "scores": np.array([[0.0, score]])} for score in (0.0, 4.0)]
    paths = [store.write_tensors("policy", table) for table in tables]
    one, two = (
        PolicyVersion(number, name, sha256, path)
        for (number, name), (path, sha256) in zip([(1, "reward-1"), (4, "policy-1")], paths, strict=True)
    )
    journal.add_version(one, "reward", base=0)
    journal.add_version(two, "cost", base=1, multiplier=whole)
    for _ in journal.rounds(1):
        found = Merging(journal, store).merged(one, two, 0.25)
    assert (found.number, found.name) == (5, "merged-1")
    assert store.read_tensors(found.path, found.sha256)["scores"].tolist() == [[0.0, 1.0]]
    last = journal.versions()[-1]
    assert (last.stage, last.base, last.round) == ("cost", 1, 1)
    assert last.multiplier == (None if whole is None else pytest.approx(0.2))


def test_an_update_by_policy_gradients_goes_on_where_the_last_one_ended(journal: Journal) -> None:
    backend = Noting()
    settings = PpoSettings(epochs=3)
    updates = Updates(backend, journal, settings, seed=7)
    first = Critics(("reward", "r0"), ("cost", "c0"))
    scores = (np.array([1.0, 2.0, 3.0, 4.0]), np.array([-1.0, -2.0, -3.0, -4.0]))
    for number in journal.rounds(3):
        version = updates.reinforce(REFERENCE, ANSWERS, scores, 0.5 * number, first)
        assert version == made(number, f"policy-{number}")
    answers = tuple(
        ScoredAnswer(a.prompt.token_ids, a.token_ids, float(r), float(c))
        for a, r, c in zip(ANSWERS, *scores, strict=True)
    )
    starts = [REFERENCE, made(1, "policy-1"), made(2, "policy-2")]
    critics = [first, Critics(("reward", "r1"), ("cost", "c1")), Critics(("reward", "r2"), ("cost", "c2"))]
    for number, command in enumerate(backend.updates, 1):
        assert command == PpoCommand(
            number, starts[number - 1], answers, 0.5 * number, critics[number - 1], settings,
            seed_of(7, number, "ppo"), f"policy-{number}",
        )  # fmt: skip
    entries = journal.versions()[1:]
    assert [(e.stage, e.base, e.multiplier, e.workers) for e in entries] == [
        ("cost", number - 1, 0.5 * number, (13,)) for number in (1, 2, 3)
    ]
    assert [e.metrics for e in entries] == [{"ppo/kl": 0.5}] * 3
    assert journal.metrics()[3] == {"ppo/kl": 0.5}


def test_an_update_needs_scores_of_all_answers(journal: Journal) -> None:
    updates = Updates(Noting(), journal, PpoSettings(), seed=7)
    for number in journal.rounds(1):
        with pytest.raises(ValueError, match="zip"):
            updates.reinforce(REFERENCE, ANSWERS, (np.ones(4), np.ones(3)), 0.5 * number, None)


def test_older_rows_are_drawn_under_the_name_of_their_fit(journal: Journal) -> None:
    backend = Noting()
    trainer = controller(journal, backend, FitPlan(TrainerConfig(refit=BudgetRefit(rows=3, per_new=0.0))))
    rows = [replace(row, round=index // 7) for index, row in enumerate(ROWS)]
    for _ in journal.rounds(1):
        policy = trainer.fit(reward_objective(REFERENCE, 0.1), rows)
        trainer.fit(lagrangian_objective(policy, 0.5, 0.1), rows)
    for command, (stage, link) in zip(backend.commands, (("reward", 0), ("cost", 1)), strict=True):
        draws = np.random.default_rng(seed_of(7, 1, stage, link, "replay"))
        assert command.rows == limit_rows(rows, (), 3, draws)[0]
    assert len(backend.commands[0].rows) == 5


def test_numbers_of_the_backend_come_back_unchanged_and_none_is_missing(journal: Journal) -> None:
    class Losing(Noting):
        def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> np.ndarray:
            return np.zeros(len(responses) - 1)

        def features(self, responses: Sequence[Response]) -> np.ndarray:
            return np.zeros((len(responses) + 1, 3))

    losing = controller(journal, Losing())
    with pytest.raises(RunError, match="asked for log-probabilities of 4 answers and returned 3"):
        losing.log_probs(REFERENCE, ANSWERS)
    with pytest.raises(RunError, match="asked for features of 4 answers and returned 5"):
        losing.features(ANSWERS)
    trainer = controller(journal, Noting())
    assert trainer.log_probs(REFERENCE, ANSWERS).tolist() == [0.5, 1.5, 2.5, 3.5]
    assert trainer.features(ANSWERS).shape == (4, 3)


def test_many_answers_go_to_the_trainer_in_calls_of_a_bounded_size(journal: Journal) -> None:
    """160,000 features were computed in one call, under one deadline."""
    sizes: list[int] = []

    class Numbering(Noting):
        def features(self, responses: Sequence[Response]) -> np.ndarray:
            sizes.append(len(responses))
            return np.array([[float(response.id)] for response in responses])

    answers = [replace(ANSWERS[0], id=str(number)) for number in range(2 * LARGEST_CALL + 5)]
    features = controller(journal, Numbering()).features(answers)
    assert sizes == [LARGEST_CALL, LARGEST_CALL, 5]
    assert features[:, 0].tolist() == list(range(len(answers)))


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"fit/better": -1.5, "fit/worse": -4.25}, "became less likely, by 1.5 and 4.2 nats (likelihood displacement)"),
        ({"fit/better": -0.5, "fit/worse": -4.25}, None),
        ({"fit/better": 1.5, "fit/worse": -9.0}, None),
        ({"fit/loss_at_start": 0.02, "fit/loss": 0.27}, "with a loss of 0.27 and began with 0.02: its steps overshoot"),
        ({"fit/loss_at_start": 0.2, "fit/loss": 0.39}, None),
        ({"fit/held_out_start": 0.693, "fit/held_out_loss": 0.7}, "learned nothing that holds on prompts"),
        ({"fit/held_out_start": 0.693, "fit/held_out_loss": 0.6}, None),
    ],
)
def test_a_doubtful_fit_is_said(
    metrics: dict[str, float], said: str | None, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    class Doubtful(Noting):
        def execute(self, command: FitCommand) -> FitResult:
            return replace(super().execute(command), metrics=metrics)

    trainer = controller(journal, Doubtful())
    for _ in journal.rounds(1):
        trainer.fit(reward_objective(REFERENCE, 0.1), ROWS)
    assert len(caplog.messages) == (said is not None)
    assert said is None or (said in caplog.text and caplog.messages[0].startswith("reward-1: "))
