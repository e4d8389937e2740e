"""Which pairs people are asked about: arms with equal labels, the statistic by hand."""

from __future__ import annotations

from typing import Any

import pytest

from lab.studies.active_choice.run import deciding, registered, table
from lab.studies.exploration.played import ROUNDS, Arm, Cell, played
from lab.studies.exploration.worlds import table_ground


@pytest.mark.slow
def test_both_arms_ask_for_the_same_labels_and_choose_different_pairs() -> None:
    cell = Cell(rare=0.02, beta=0.2, picks=2, candidates=8)
    ground = table_ground(5, cell.rare, cell.beta)
    active, uniform = (played(ground, cell, Arm("elliptical", keep=9, keep_random=share), 5) for share in (0.25, 1.0))
    assert active.labels == uniform.labels == ROUNDS * 288 * 32 + 2 * (400 + ROUNDS * 9)
    assert active.gaps[0] == uniform.gaps[0]
    assert active.gaps[-1] != uniform.gaps[-1]


def test_the_registered_statistic_by_hand() -> None:
    def row(uniform: float, active: float) -> dict[str, Any]:
        return {name: {"gaps": [9.0, gap], "labels": 10} for name, gap in (("uniform", uniform), ("active", active))}

    results = {
        "twin/often/1000": row(0.4, 0.3), "twin/rare/1000": row(0.9, 0.6), "twin/often/1001": row(0.5, 0.1),
        "twin/rare/1001": row(0.2, 0.2), "twin/often/1002": row(0.1, 0.8), "tables/rare/1000": row(0.1, 0.9),
    }  # fmt: skip
    assert deciding(results) == pytest.approx([0.2, 0.2]), "worlds of the twin with both cells"
    shown = table(results)
    assert "| twin | rare | 2 | 0.550 | 0.400 | +0.150 (-1.756 to +2.056) | 10 |" in shown
    assert shown.endswith("Deciding: +0.200 (+0.200 to +0.200), 2 worlds")
    assert registered()["arms"]["uniform"] == 1.0
