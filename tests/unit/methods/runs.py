"""Compared methods on small tabular worlds: one run of each, quick, with what it needs."""

from __future__ import annotations

from pathlib import Path

from pddpo_lab.worlds.tabular.parts import TabularTrainer
from pddpo_ray.backends.in_process import make_backends
from pddpo_ray.config import Config, load
from pddpo_ray.contracts import FitCommand, FitResult
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal import JournalReader, read_journal
from pddpo_ray.storage.whole_files import JOURNAL

FIXED = "dual.rule={kind: fixed}"
SMALL = (
    "world={kind: tabular, name: random, seed: 3}",
    "feedback.responses=24",
    "limits.cost.labels_each=4",
    "offline.pairs=120",
    "dual.upper=4.0",
)
NEEDS: dict[str, tuple[str, ...]] = {
    "pd-dpo-fixed": (FIXED, "rounds=1", "dual.first=0.7"),
    "pd-dpo-adalag": ("dual.rule={kind: log}", "rounds=4", "dual.first=1.0", "method.window=40"),
    "dpo-harmless": (FIXED, "rounds=1"),
    "dpo-helpful": (FIXED, "rounds=1"),
    "safe-dpo": (FIXED, "rounds=1"),
    "sacpo": (FIXED, "rounds=1", "dual.first=0.7"),
    "p-sacpo": (FIXED, "rounds=1", "dual.first=1.4"),
    "mocan": (FIXED, "rounds=1", "dual.first=1.0", "method.answers=16"),
    "pecan": (FIXED, "rounds=1", "dual.first=1.0", "method.answers=16"),
    "c-dpo": ("dual.rule={kind: anytime, first_step: 0.3, curvature_cap: false}", "rounds=3", "dual.first=1.0"),
    "caid": (FIXED, "rounds=3", "dual.first=1.0", "method.rate=0.2", "method.answers=16"),
}


def config_of(method: str, *overrides: str) -> Config:
    return load("tabular", [f"algorithm={method}", *SMALL, *NEEDS[method], *overrides])


def journal_of(run_dir: Path) -> JournalReader:
    return read_journal(run_dir / JOURNAL, run_dir.name)


class Recorder(TabularTrainer):
    """The tabular trainer, which remembers what it was asked for."""

    commands: list[FitCommand]

    def execute(self, command: FitCommand) -> FitResult:
        self.commands.append(command)
        return super().execute(command)


def commands_of(config: Config, run_dir: Path) -> list[FitCommand]:
    """The fits of a run, in order."""
    asked: list[FitCommand] = []

    def backends(config: Config, run_dir: Path):  # type: ignore[no-untyped-def]
        made = make_backends(config, run_dir)
        assert isinstance(made.trainer, TabularTrainer)
        made.trainer.__class__ = Recorder
        made.trainer.commands = asked  # type: ignore[attr-defined]
        return made

    run_recipe(config, run_dir, make_backends=backends)
    return asked
