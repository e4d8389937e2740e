"""The study of releases: its tables are worlds of a recipe, and its summary counts what it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.studies.limits.worlds import table_world
from lab.studies.releases import run as releases
from lab.studies.releases.run import LIMIT, on_table, run_study, summary, table
from pddpo_lab.worlds.tabular.files import load_world
from pddpo_ray.certificates.testing import reason_against


def cell(released: int | None, *, upper: float = 0.049, mixture: str = "undecided", above: float = 0.001) -> Any:
    ledger = [{"policy": "policy-2", "round": 2, "state": "certified", "draws": 500, "upper": upper}]
    return {
        "released": released, "gaps": {"1": 0.1, "2": 0.12, "3": 0.05}, "excess": {"1": -0.001, "2": -0.01, "3": 0.02},
        "ledger": [*ledger, {"policy": "the mixture of rounds 1 to 3", "round": None}],
        "labels": {"used": 900, "certificate": 500}, "mixture": {"state": mixture, "excess": above},
    }  # fmt: skip


def test_the_best_round_is_one_that_keeps_the_limit_and_rows_say_what_was_released() -> None:
    said = table({"tables/3000": cell(2), "tables/3001": cell(None, mixture="certified")})
    assert "| 3000 | round 2 | 4.90 % | 4.00 % | 1 | 0.120 | 0.100 | 1.20 | 900 | 500 | undecided | 5.10 % |" in said
    assert "1 of 2 worlds end with a release, 0 of them above the limit" in said
    assert "at most 1.15 in 0" in said
    assert "1 of 2 certified, 1 of them above the limit" in said
    nothing = "0 of 0 worlds end with a release, 0 of them above the limit. Mixtures: 0 of 0 certified, 0 of them above"
    assert summary([], []) == f"{nothing} the limit."


def test_a_table_is_a_world_whose_limit_binds_and_that_can_be_certified(tmp_path: Path) -> None:
    config = on_table(3000, tmp_path)
    assert reason_against(config) is None
    stored, drawn = load_world(tmp_path / "table-3000.json"), table_world(3000, (LIMIT,))
    assert stored.oracle.reward == pytest.approx(drawn.reward)
    assert 1 / (1 + np.exp(-stored.oracle.cost)) == pytest.approx(drawn.costs[0])


def test_a_finished_world_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def measured(config: object, run: Path) -> Any:
        asked.append(run)
        run.mkdir(parents=True, exist_ok=True)
        return cell(2)

    monkeypatch.setattr(releases, "measured", measured)
    out, runs = tmp_path / "cells.json", tmp_path / "runs"
    assert list(run_study("tables", 2, 1, out, runs)) == ["tables/3000"]
    assert list(run_study("tables", 2, -1, out, runs)) == ["tables/3000", "tables/3001"]
    assert len(asked) == 2
    assert not any(runs.glob("tables/*"))
