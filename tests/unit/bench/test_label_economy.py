"""Splits of a run's labels: sums, the shipped one, and the table by hand."""

from __future__ import annotations

from typing import Any

import pytest

from lab.studies.exploration.played import ARMS, PROMPTS, ROUNDS, Cell, Estimated, played
from lab.studies.exploration.worlds import GROUNDS
from lab.studies.label_economy.run import registered, spent, table
from pddpo_ray.config import load

SPLITS = [(name, total) for name, arm in registered()["arms"].items() for total in arm["totals"]]


def test_the_last_total_is_what_the_recipe_spends() -> None:
    recipe, arm = load("o-pd-dpo"), registered()["arms"]["shipped"]
    estimated, cell = spent(arm["totals"][-1], arm["estimate"], arm["labels_each"])
    assert estimated == Estimated(recipe.feedback.responses, recipe.labels_each)
    assert (cell.picks, cell.candidates) == (recipe.explore.picks, recipe.rollout.candidates)


@pytest.mark.parametrize(("name", "total"), SPLITS)
def test_a_split_spends_its_total(name: str, total: int) -> None:
    arm = registered()["arms"][name]
    estimated, cell = spent(total, arm["estimate"], arm["labels_each"])
    pairs = registered()["pairs_before"] + ROUNDS * PROMPTS * cell.picks
    labels = 2 * pairs + ROUNDS * estimated.responses * estimated.labels_each
    assert labels == pytest.approx(total, rel=0.02)
    assert cell.candidates >= cell.picks


def test_a_run_asks_for_the_labels_of_its_split() -> None:
    ground, cell = GROUNDS["tables"](0, 0.05, 0.2), Cell(0.05, 0.2, 2, 8)
    runs = [played(ground, cell, ARMS["off"], 0, rounds=2, estimated=Estimated(40, each)) for each in (8, 32)]
    assert runs[1].labels - runs[0].labels == 2 * 40 * (32 - 8)


def test_the_table_says_how_much_lower_a_split_is() -> None:
    gaps = {"shipped": (0.5, 0.7), "fewer each": (0.4, 0.4), "half": (0.5, 0.7), "quarter": (0.6, 0.8)}
    results: dict[str, Any] = {
        str(world): {
            f"{name}/{total}": {"gaps": [9.0, gaps[name][world]], "violation": world - 0.5, "labels": 100 + world}
            for name, total in SPLITS
        }
        for world in (0, 1)
    }
    rows = [line for line in table(results).splitlines() if line.startswith("| 32,000 | fewer each")]
    # lower by 0.1 and 0.3: mean 0.2, standard error 0.1, t = 12.71
    assert rows == ["| 32,000 | fewer each | 269 × 8 | 6 | 2 | 0.400 | +0.200 (-1.071 to +1.471) | 1 | 100 |"]
