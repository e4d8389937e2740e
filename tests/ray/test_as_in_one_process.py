"""Runs on Ray compute what they compute in one process: by the same formulas, in the actors' processes, to the same
numbers.

The session is this file's own: its workers start with an environment in which they note what they enter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import launch
from pddpo_ray.certificates.ledger import read_ledger
from pddpo_ray.certificates.testing import certify
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal.identity import open_folder
from tests.support.ray_session import session
from tests.support.reach import Entered, entered, missing
from tests.support.traces import trace, workers_by_round
from tests.unit.methods.test_reach import CERTIFIED, ON_TABLES, ONLY_TEXTS, WORLD
from tools.small_runs import FEW_STEPS, HERE, ON_RAY, QUIET, TABLE, VARIANTS

pytestmark = [pytest.mark.ray, pytest.mark.full]

SITE = Path(__file__).parents[1] / "reach_site"
IN_WORKERS = (
    "pddpo_lab.mle.box_mle",
    "pddpo_lab.margins.score_margin",
    "pddpo_ray.theory.multipliers.dual.ascend",
    "pddpo_ray.worlds.truth_labeller.WorldLabeller.compare",
    *(name for name in ONLY_TEXTS if "exploration" not in name and not name.endswith("baseline_optimism_loss")),
)
"""Work of the trainer's, the dual variable's and the labellers' processes."""
DRAWS = 640
RUNS = {
    "o-pd-dpo": ["tabular", *TABLE, *CERTIFIED, "limits.cost.at_most=60 %", f"certificate.draws={DRAWS}"],
    "two limits, the paper's loss": [
        *["tabular-two-limits", *TABLE, "limits.privacy.labels_each=8", "rounds=2"],
        *["algorithm=o-pd-dpo-paper", *VARIANTS["bonus-simhash"]],
    ],
    "sources and a drift": [
        *["tabular-limits", "rounds=2", "feedback.responses=24", "explore.prompts=8", "offline.pairs=80"],
        "limits.drift={kl: reference, at_most: 0.3}",
    ],
    "policy gradients": ["tabular", *TABLE, WORLD, *ON_TABLES["c-grpo"]],
    "three limits on texts, with a computed reward": [
        *["text-world-limits", *FEW_STEPS, *QUIET, "trainer.threads=1", "rounds=2", "offline.compare_rounds=0"],
        *["rollout={engine: transformers, max_tokens: 40, candidates: 4}", "feedback.responses=16", "offline.pairs=48"],
        *["explore={calibration: 48, rank: 8, prompts: 4, picks: 2}", "reward={rule: words, bounds: [0, 20]}"],
    ],
}
"""A run's processes take half a minute to start. These give the trainer each kind of work: fits of a table with a
margin, policy gradients, networks. Other methods ask the same parts, and one actor holds any rule of the multiplier."""

TWO_ENGINES = ["rollout.engines=2"]


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where worker processes note what they enter, while a session runs in which they do."""
    folder = tmp_path_factory.mktemp("notes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REACH_OUT", str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(SITE), os.environ.get("PYTHONPATH", "")]))
        for _ in session():
            yield folder


def in_workers(notes: Path) -> Entered:
    """What they entered since this was asked before."""
    lines = []
    for file in notes.iterdir():
        lines += file.read_text().splitlines()
        file.unlink()
    return {(path, name) for path, _, name in (line.partition("\t") for line in lines)}


def measured(run: Path) -> list[tuple[int, str, object]]:
    """Whose answers were measured for which limit, what each step did to the multipliers, and computed rewards."""
    with open_folder(run) as journal:
        wanted = [*journal.phases(like="measure-%"), *journal.phases(like="dual"), *journal.phases(like="reward-%")]
        return [(one.round, one.phase, one.payload) for one in wanted]


def test_runs_on_ray_enter_the_formulas_of_one_process_and_give_its_numbers(notes: Path, tmp_path: Path) -> None:
    workers: Entered = set()
    for name, (recipe, *overrides) in RUNS.items():
        here, there = (tmp_path / place / name / "run" for place in ("here", "there"))
        with entered() as formulas:
            in_one = run_recipe(load(recipe, [*overrides, *HERE]), here)
        with entered() as driver:
            on_ray = launch.run_recipe(load(recipe, [*overrides, *TWO_ENGINES, *ON_RAY]), there)
        assert on_ray["limits"] == in_one["limits"], name
        assert trace(there) == trace(here), name
        assert measured(there) == measured(here), name
        assert on_ray["weights_verified"], name
        (ranks,) = set(workers_by_round(there))
        assert os.getpid() not in ranks, "every fit of a run was made by the same processes, and not by the driver"
        elsewhere = in_workers(notes)
        theory = {function for function in formulas if f"{os.sep}theory{os.sep}" in function[0]}
        assert theory - (driver | elsewhere) == set(), name
        workers |= elsewhere
    assert missing(workers, list(IN_WORKERS)) == []
    phases = {phase for _, phase, _ in measured(tmp_path / "there" / name / "run")}
    assert {"measure-offline", "measure-pairs", "measure-answers", "dual", "reward-pairs"} <= phases
    verdicts_at_the_end_and_later(tmp_path)


def verdicts_at_the_end_and_later(folder: Path) -> None:
    """Of the first run, on Ray and in one process: the ledgers, and a certificate after the end."""
    recipe, *overrides = RUNS["o-pd-dpo"]
    ledgers, later = [], []
    for place, mode in (("here", HERE), ("there", [*TWO_ENGINES, *ON_RAY])):
        run = folder / place / "o-pd-dpo" / "run"
        later.append(certify(load(recipe, [*overrides, *mode]), run, "mixture", {}, DRAWS).numbers)
        with open_folder(run) as journal:
            ledgers.append([(line.candidate, line.numbers, line.state) for line in read_ledger(journal)])
    assert ledgers[0] == ledgers[1]
    assert [state for _, _, state in ledgers[0]] == ["certified", "certified"]
    assert later[0] == later[1]
