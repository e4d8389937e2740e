"""Runs enter what docs/paper.md names: its map is that of the code that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pddpo_lab.verify import checks, experiments
from pddpo_lab.verify.methods import COMPARED
from pddpo_lab.verify.simulate import simulate
from pddpo_lab.worlds.tabular.world import trap_world
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.serving.catalog import drawn_round
from tests.support.method_modules import METHODS as ALL_METHODS
from tests.support.reach import Entered, entered, functions_of, missing, named, resolved
from tools.small_runs import HERE, METHODS, TABLE, TEXT, VARIANTS

WORLD = "world={kind: tabular, name: random, seed: 3}"
ON_TABLES = {name: [f"algorithm={name}", "dual.upper=4.0", *own] for name, own in METHODS.items()}
CHOICES = ("bonus-simhash", "bonus-thompson", "loss-xpo", "dual-newton")
"""Beside what the methods themselves state."""
ON_TABLES |= {choice: ["rounds=2", *VARIANTS[choice]] for choice in CHOICES}
CERTIFIED = ["rounds=2", *VARIANTS["signal-rate"], "certificate={certify: end, candidates: 1, draws: 64}"]
ON_TABLES["certified"] = CERTIFIED
ON_TEXTS = {
    "paper": ["algorithm=o-pd-dpo-paper", "rounds=2", "offline.compare_rounds=0"],
    "xpo": [*VARIANTS["loss-xpo"], "rounds=1", "offline.compare_rounds=0"],
}
"""The one has every term of the loss but the other's."""
ONLY_TEXTS = (
    "pddpo_ray.theory.losses.objectives.preference_loss",
    "pddpo_ray.theory.losses.objectives.support_loss",
    "pddpo_ray.theory.losses.objectives.baseline_optimism_loss",
    "pddpo_ray.theory.multipliers.cost_stage.cost_stage_scales",
    "pddpo_ray.training.fit.run_fit",
    "pddpo_ray.exploration.features.fit_whitening",
)
"""What tables do without: they know neither tensors nor hidden states."""
NO_RUN = (
    "pddpo_ray.exploration.alternatives.elliptical",
    "pddpo_ray.serving.catalog.drawn_round",
)
"""What `pddpo verify` alone calls, and what answers a request after the run."""


def by_runs() -> list[str]:
    return [name for name in named() if name not in NO_RUN and not name.startswith("pddpo_lab.verify.")]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Entered:
    """One small run of every method on a table, and of every choice of exploration and dual rule."""
    assert set(METHODS) == set(ALL_METHODS)
    folder = tmp_path_factory.mktemp("tables")
    with entered() as seen:
        for name, own in ON_TABLES.items():
            run_recipe(load("tabular", [*TABLE, WORLD, *own, *HERE]), folder / name)
        run_recipe(
            load("tabular-two-limits", [*TABLE, "limits.privacy.labels_each=8", "rounds=2", *HERE]),
            folder / "two-limits",
        )
    return seen


@pytest.mark.full
@pytest.mark.slow
def test_small_runs_on_tables_enter_what_the_page_names(tables: Entered) -> None:
    assert missing(tables, [name for name in by_runs() if name not in ONLY_TEXTS]) == []


@pytest.mark.full
@pytest.mark.slow
def test_small_runs_on_texts_enter_the_rest_and_the_margins(tmp_path: Path) -> None:
    with entered() as seen:
        for name, own in ON_TEXTS.items():
            run_recipe(load("text-world", [*TEXT, *own, *HERE]), tmp_path / name)
    assert missing(seen, [*ONLY_TEXTS, "pddpo_lab.methods.loss_bonus.bonus_margin"]) == []


@pytest.mark.full
@pytest.mark.slow
def test_verify_and_the_endpoint_enter_what_no_run_does() -> None:
    world = trap_world()
    with entered() as seen:
        for check in checks.FORMULAS:
            assert check(world).passed
        for method in COMPARED:
            simulate(world, method, rounds=2, seeds=[0])
        experiments.bias_table()
        experiments.theory_table(world, progress=lambda line: None, rounds=10)
        experiments.e2_table(world, seeds=[0, 1], progress=lambda line: None, horizons=(2,))
        drawn_round("a conversation", (1, 2))
    assert missing(seen, [name for name in named() if name not in by_runs()]) == []


def test_every_name_leads_to_a_function_or_to_a_record() -> None:
    """Records without code of their own: sections of a recipe, and what parts tell each other."""
    assert [name for name in named() if not functions_of(name) and not isinstance(resolved(name), type)] == []


@pytest.mark.full
@pytest.mark.slow
def test_what_no_run_enters_is_told_apart_from_what_runs_do(tables: Entered) -> None:
    """The list of exceptions is no larger than it must be."""
    assert sorted(set(missing(tables, list(NO_RUN)))) == sorted(NO_RUN)
    assert set(NO_RUN) | set(ONLY_TEXTS) <= set(named())
