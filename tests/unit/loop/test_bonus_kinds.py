"""Every uncertainty model by recipe, through the same page and parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pddpo_ray.journal import Journal
from pddpo_ray.run import JOURNAL, run_recipe
from tests.unit.loop.small_run import small


@pytest.mark.parametrize("kind", ["elliptical", "simhash", "thompson", "off"])
def test_a_recipe_names_how_answers_are_chosen(kind: str, tmp_path: Path) -> None:
    run_recipe(small(f"explore.bonus={kind}"), tmp_path / "run")
    with Journal.open(tmp_path / "run" / JOURNAL, "run") as journal:
        bonus = journal.metrics()[2]["explore/mean_bonus_reward"]
        pairs = [entry for entry in journal.pairs() if entry.round == 2]
    assert pairs
    assert (bonus == 0.0) == (kind == "off")
