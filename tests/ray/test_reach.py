"""Runs on Ray enter what docs/paper.md names, in the driver or in the process of the actor that does the work.

The session is this file's own: its workers start with an environment in which they note what they enter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import launch
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from tests.support.ray_session import session
from tests.support.reach import Entered, entered, missing
from tests.unit.methods.test_reach import CERTIFIED, ON_TABLES, ONLY_TEXTS, WORLD, by_runs
from tools.small_runs import HERE, METHODS, ON_RAY, TABLE, TEXT, VARIANTS

pytestmark = pytest.mark.ray

SITE = Path(__file__).parents[1] / "reach_site"
IN_WORKERS = (
    "pddpo_lab.mle.box_mle",
    "pddpo_lab.margins.score_margin",
    "pddpo_ray.theory.multipliers.dual.ascend",
    "pddpo_ray.worlds.truth_labeller.WorldLabeller.compare",
    *(name for name in ONLY_TEXTS if "exploration" not in name),
)
"""Work of the trainer's, the dual variable's and the labellers' processes."""


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
    lines = [line for file in notes.iterdir() for line in file.read_text().splitlines()]
    return {(path, name) for path, _, name in (line.partition("\t") for line in lines)}


NAMED = ("o-pd-dpo", "o-pd-dpo-paper", "pd-dpo", "pd-dpo-fixed", "pd-dpo-adalag", "sacpo", "loss-xpo")
"""Methods that the page names, and a term of the loss."""
CHOICES = {
    "simhash": [*VARIANTS["bonus-simhash"], *VARIANTS["dual-newton"]],
    "thompson": [*VARIANTS["bonus-thompson"], *VARIANTS["dual-log"]],
    "anytime": VARIANTS["dual-anytime"],
    "certified": CERTIFIED,
}


@pytest.mark.full
def test_small_runs_on_ray_enter_what_the_page_names(notes: Path, tmp_path: Path) -> None:
    runs = {name: ["tabular", *TABLE, WORLD, *ON_TABLES[name]] for name in NAMED}
    runs |= {name: ["tabular", *TABLE, WORLD, *own, "rounds=2"] for name, own in CHOICES.items()}
    runs["two-limits"] = ["tabular-two-limits", *TABLE, "limits.privacy.labels_each=8", "rounds=2"]
    texts = ["text-world", *TEXT, "rounds=2", "offline.compare_rounds=0"]
    runs["texts"] = [*texts, "algorithm=o-pd-dpo-paper"]
    runs["texts-xpo"] = [*texts, "explore.bonus=off", *VARIANTS["loss-xpo"]]
    with entered() as seen:
        for name, (recipe, *overrides) in runs.items():
            launch.run_recipe(load(recipe, [*overrides, *ON_RAY]), tmp_path / name)
    there = in_workers(notes)
    assert missing(there, list(IN_WORKERS)) == []
    assert missing(seen | there, by_runs()) == []


@pytest.mark.full
@pytest.mark.parametrize("method", sorted(set(METHODS) - set(NAMED)))
def test_the_other_methods_on_ray_enter_what_they_enter_in_one_process(
    method: str, notes: Path, tmp_path: Path
) -> None:
    recipe = [*TABLE, WORLD, *ON_TABLES[method]]
    with entered() as here:
        run_recipe(load("tabular", [*recipe, *HERE]), tmp_path / "here")
    for file in notes.iterdir():
        file.unlink()
    with entered() as driver:
        launch.run_recipe(load("tabular", [*recipe, *ON_RAY]), tmp_path / "there")
    theory = {one for one in here if f"{os.sep}theory{os.sep}" in one[0]}
    assert theory - (driver | in_workers(notes)) == set()
