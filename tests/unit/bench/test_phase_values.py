"""Exploration under a limit that is learned from values: arms on equal terms, the table by hand."""

from __future__ import annotations

from typing import Any

import pytest

from lab.studies.comparison.ground import fair_ground
from lab.studies.exploration_values.run import arm_of, played, registered, registered_worlds, table


def test_every_registered_world_is_played_once_and_the_quick_cells_come_first() -> None:
    worlds = list(registered_worlds())
    assert len(worlds) == len(set(worlds)) == 20 * len(registered()["cells"])
    assert worlds[:3] == [("deep", 1000), ("wide", 1000), ("deep", 1001)]
    assert {cell for cell, _ in worlds[:40]} == {"deep", "wide"}


@pytest.mark.full
@pytest.mark.slow
def test_the_arms_of_a_world_ask_for_the_same_labels_and_are_made_again_alike() -> None:
    cell = {"rare": 0.02, "picks": 1, "candidates": 8}
    ground = fair_ground(60, cell["rare"])
    runs = {bonus: played(ground, arm_of(cell, bonus), 60) for bonus in registered()["arms"]}
    assert len({run["gap"] for run in runs.values()}) == len(runs)
    labels = [run["labels"] for run in runs.values()]
    assert min(labels) > 0.99 * max(labels), "a pick that nothing differs from makes no pair"
    again = played(ground, arm_of(cell, "elliptical"), 60)
    assert (again["gap"], again["rate"]) == (runs["elliptical"]["gap"], runs["elliptical"]["rate"])


def test_the_table_by_hand() -> None:
    def row(*gaps: float) -> dict[str, Any]:
        return {
            arm: {"gap": gap, "rate": gap / 10, "labels": 100}
            for arm, gap in zip(registered()["arms"], gaps, strict=True)
        }

    shown = table({"wide/1000": row(0.6, 0.5, 0.2), "wide/1001": row(0.4, 0.3, 0.2), "deep/1000": row(1.0, 1.0, 1.0)})
    # proposals - elliptical: .3 and .1; with two worlds no flip is rarer than 1/2, and Holm counts all four cells
    expected = "| wide | 2 | 0.500 | 0.400 | 0.200 | +0.300 (-0.971 to +1.571) | +0.200 (-1.071 to +1.471) |"
    assert shown.splitlines()[-1].startswith(expected)
    assert shown.splitlines()[-1].endswith("| +0.100 (+0.100 to +0.100) | 1.0000 | 1, 0, 0 | 100 |")
    assert "deep" not in shown, "one world has no interval"
