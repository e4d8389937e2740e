"""What runs of one seed share: equal fits are made once, draws from the reference are kept, nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_lab.compare.runner import MemoryPeak, budget_of, run_arm
from pddpo_lab.compare.sharing import SharedEngine, SharedTrainer, identity_of
from pddpo_lab.compare.suite import load_suite
from pddpo_lab.worlds.tabular.parts import TabularEngine, TabularTrainer
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.backends.backends import Backends
from pddpo_ray.backends.in_process import make_backends
from pddpo_ray.config import Config
from pddpo_ray.contracts import Count, FitCommand, FitResult, FitSettings, Start
from pddpo_ray.journal import read_journal
from pddpo_ray.records import Array, Decoding, Objective, PairRow, PolicyVersion, Prompt
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.recall import Memory
from pddpo_ray.storage.whole_files import JOURNAL
from tests.support.finished_runs import FinishedRuns
from tests.unit.methods.runs import config_of


class Counting(TabularTrainer):
    """The tabular trainer, which counts what it really does."""

    fits = 0
    texts = 0

    def execute(self, command: FitCommand) -> FitResult:
        self.fits += 1
        return super().execute(command)

    def log_probs(self, policy: PolicyVersion, responses: Sequence[object]) -> Array:
        self.texts += len(responses)
        return super().log_probs(policy, responses)  # type: ignore[arg-type]


def command_of(trainer: TabularTrainer, number: int, name: str, *, seed: int = 1) -> FitCommand:
    rows = (PairRow("p", (0,), (1,), (2,)), PairRow("q", (1,), (0,), (3,)))
    objective = Objective("reward", trainer.reference, 0.1)
    return FitCommand(number, Start(trainer.reference), objective, rows, FitSettings(), seed, name)


def test_equal_fits_are_made_once_under_every_name(tmp_path: Path) -> None:
    backend = Counting(trap_world(), ArtifactStore(tmp_path))
    memory = tmp_path / "memory.jsonl"
    shared = SharedTrainer(backend, Memory(memory))
    first = shared.execute(command_of(backend, 1, "reward-1"))
    second = shared.execute(command_of(backend, 7, "other"))
    assert backend.fits == 1
    assert (second.version.number, second.version.name) == (7, "other")
    assert (second.version.sha256, second.metrics) == (first.version.sha256, first.metrics)
    shared.execute(command_of(backend, 1, "reward-1", seed=2))
    assert backend.fits == 2
    # a new process finds what the old one made
    again = SharedTrainer(backend, Memory(memory)).execute(command_of(backend, 3, "third"))
    assert backend.fits == 2
    assert again.version.sha256 == first.version.sha256


def test_everything_that_decides_a_fit_is_in_its_identity() -> None:
    version = PolicyVersion(0, "reference", "aa", "x")
    command = FitCommand(
        1,
        Start(version),
        Objective("cost", version, 0.2, 0.5),
        (PairRow("p", (0,), (1,), (2,)),),
        FitSettings(),
        3,
        "n",
    )
    same = replace(command, sequence=9, result="other", start=Start(replace(version, number=4, name="b", path="y")))
    assert identity_of(same) == identity_of(command)
    different = [
        replace(command, seed=4),
        replace(command, settings=FitSettings(steps=31)),
        replace(command, objective=Objective("cost", version, 0.2, 0.6)),
        replace(command, objective=Objective("cost", version, 0.2, 0.5, margins=(1.0,))),
        replace(command, start=Start(replace(version, sha256="bb"))),
        replace(command, start=Start(version, plus=version, minus=version, scale=0.5)),
        replace(command, rows=(PairRow("p", (0,), (2,), (1,)),)),
    ]
    assert all(identity_of(other) != identity_of(command) for other in different)


def test_a_text_is_scored_once_until_the_scores_are_forgotten(tmp_path: Path) -> None:
    world = trap_world()
    backend = Counting(world, ArtifactStore(tmp_path))
    shared = SharedTrainer(backend, Memory(tmp_path / "memory.jsonl"))
    responses = [world.response(0, 1, "a"), world.response(0, 2, "b"), world.response(0, 1, "c")]
    values = shared.log_probs(backend.reference, responses)
    np.testing.assert_array_equal(values, TabularTrainer.log_probs(backend, backend.reference, responses))
    shared.log_probs(backend.reference, responses)
    assert backend.texts == 2
    np.testing.assert_array_equal(shared.features(responses), backend.features(responses))
    shared.forget()
    shared.log_probs(backend.reference, responses)
    assert backend.texts == 4


def test_draws_from_the_reference_are_kept_and_others_are_not(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    trainer = TabularTrainer(trap_world(), store)

    class Engine(TabularEngine):
        asked = 0

        def sample(
            self, prompts: Sequence[Prompt], seeds: Sequence[int], n: Count, decoding: Decoding
        ) -> list[list[tuple[tuple[int, ...], str, float]]]:
            self.asked += 1
            return super().sample(prompts, seeds, n, decoding)

    engine = Engine(trap_world(), store)
    shared = SharedEngine(engine, Memory(tmp_path / "memory.jsonl"), trainer.reference)
    prompts = trap_world().prompts[:2]
    shared.deliver(trainer.reference)
    first = shared.sample(prompts, [1, 2], 3, Decoding())
    assert shared.sample(prompts, [1, 2], 3, Decoding()) == first
    assert engine.asked == 1
    assert shared.sample(prompts, [1, 3], 9, Decoding()) != shared.sample(prompts, [1, 2], 9, Decoding())
    policy = trainer.execute(command_of(trainer, 1, "reward-1")).version
    shared.deliver(policy)
    shared.sample(prompts, [1, 2], 3, Decoding())
    shared.sample(prompts, [1, 2], 3, Decoding())
    assert engine.asked == 5


def test_a_line_that_a_killed_process_left_unfinished_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "memory.jsonl"
    Memory(path).recall("one", lambda: 1)
    path.write_text(path.read_text() + '{"key": "abc", "val')
    memory = Memory(path)
    assert memory.recall("one", lambda: 2) == 1
    assert memory.recall("two", lambda: [2, None]) == [2, None]
    assert Memory(path).recall("one", lambda: 3) == 1


@pytest.mark.run
def test_budgets_count_pairs_labels_tokens_and_fits(finished_runs: FinishedRuns) -> None:
    """120 pairs with two labels each, 24 x 4 labels of answers, two fits; a table's answer is a token."""
    with read_journal(finished_runs.folder(config_of("sacpo")) / JOURNAL, "run") as journal:
        budget = budget_of(journal)
    assert (budget.pairs, budget.labels, budget.fits, budget.optimiser_steps) == (120, 240 + 96, 2, 0)
    assert budget.tokens == 24


@pytest.mark.run
def test_labels_that_were_withheld_are_not_counted(finished_runs: FinishedRuns) -> None:
    run = finished_runs.folder(config_of("sacpo", "offline.reward_share=0.1"))
    with read_journal(run / JOURNAL, "run") as journal:
        assert budget_of(journal).labels == 240 + 96


def taken_for_a_block() -> float:
    peak = MemoryPeak()
    peak.begin()
    block = np.ones(40 * 2**20 // 8)
    taken = peak.end()
    del block
    return taken


@pytest.mark.slow
def test_the_peak_of_memory_is_what_was_taken_meanwhile() -> None:
    """In a fresh process: a long-lived one may give memory back in the same moment, and its peak is then an old one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        assert 30 < process.submit(taken_for_a_block).result(timeout=120) < 200


def first_runs_peak(folder: Path) -> float:
    """Of a run whose parts take 200 MiB that are given back in the end."""
    shared: list[Any] = []

    def make(config: Config, run_dir: Path) -> Backends:
        shared.append(np.ones(200 * 2**20 // 8))
        return make_backends(config, run_dir)

    row = run_arm(load_suite("tabular", seeds=[0], overrides=["offline.pairs=40"]), "sacpo", 0, folder, make)
    return float(row["peak_mib"])


@pytest.mark.full
@pytest.mark.slow
def test_what_all_runs_share_is_in_no_runs_memory(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        assert process.submit(first_runs_peak, tmp_path).result(timeout=120) < 150
