"""A trainer that can works ahead: the next reward fit begins while this round's safety labels are waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pddpo_ray.backends.backends import Backends
from pddpo_ray.backends.in_process import make_backends
from pddpo_ray.config import Config
from pddpo_ray.contracts import EarlyTrainer, FitCommand, FitResult, Labeller, TrainerBackend
from pddpo_ray.records import Array, LabelledPair, Pair, PolicyVersion, Response, SafetyLabels
from tests.unit.loop.small_run import finish, small


@dataclass
class Ahead:
    """Begins when it is told to; whoever is asked for something notes it in `log`."""

    trainer: TrainerBackend
    log: list[str]
    begun: list[FitCommand]
    executed: list[FitCommand]

    def begin(self, command: FitCommand) -> None:
        self.log.append(f"begin {command.result}")
        self.begun.append(command)

    def execute(self, command: FitCommand) -> FitResult:
        self.log.append(command.result)
        self.executed.append(command)
        return self.trainer.execute(command)

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array:
        return self.trainer.log_probs(policy, responses)

    def features(self, responses: Sequence[Response]) -> Array:
        return self.trainer.features(responses)

    def close(self) -> None:
        self.trainer.close()


@dataclass
class Noting:
    """A labeller whose calls are in the same log."""

    labeller: Labeller
    log: list[str]

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        self.log.append("safety")
        return self.labeller.safety(items, labels_each, seed)

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        return self.labeller.compare(pairs, seed)


FEW = "rows: 8, per_new: 0.0"


@pytest.mark.run
@pytest.mark.parametrize(
    "refit",
    ["kind: union", f"kind: budget, {FEW}", f"kind: geometric, {FEW}", f"kind: determinant, {FEW}"],
    ids=["union", "budget", "geometric", "determinant"],
)
def test_reward_fits_begin_before_the_labels_are_waited_for_and_are_the_same_fits(tmp_path: Path, refit: str) -> None:
    log: list[str] = []
    begun: list[FitCommand] = []
    executed: list[FitCommand] = []

    def ahead(config: Config, run_dir: Path) -> Backends:
        made = make_backends(config, run_dir)
        trainer = Ahead(made.trainer, log, begun, executed)
        assert isinstance(trainer, EarlyTrainer)
        return replace(made, trainer=trainer, labeller=Noting(made.labeller, log))

    config = small(f"trainer.refit={{{refit}}}", "offline.compare_rounds=0", rounds=3)
    story = finish(config, tmp_path / "ahead" / "run", make_backends=ahead)
    assert log == [
        "reward-1", "policy-1", "begin reward-2", "safety",
        "reward-2", "policy-2", "begin reward-3", "safety",
        "reward-3", "policy-3", "safety",
    ]  # fmt: skip
    assert begun == [command for command in executed if command.objective.stage == "reward"][1:]
    assert story == finish(config, tmp_path / "plain" / "run"), "a trainer that cannot gives the same run"
