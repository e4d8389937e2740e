"""The study of splits: its accounts add up, its tests are those of certificates, and a broken study goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from lab.studies.label_splits import run as label_splits
from lab.studies.label_splits.run import LIMIT, Ended, Split, played, table
from lab.studies.limits.worlds import table_world


def test_a_run_spends_what_its_split_says_and_is_compared_with_its_best_round() -> None:
    ended = played(table_world(3000, (LIMIT,)), 3000, 4_000, Split(0.25, 0.25, 0.5))
    assert 0.45 * 4_000 < ended.labels - ended.draws <= 0.55 * 4_000
    assert ended.draws <= 2_000
    assert ended.best is not None
    if ended.rate is not None and ended.rate <= LIMIT:
        assert ended.gap is not None
        assert ended.gap >= ended.best


def test_candidates_are_tested_in_their_order_until_one_is_certified() -> None:
    random, rates = np.random.default_rng(1), np.array([0.2, 0.001, 0.0])
    assert label_splits.tests(rates, [0, 1, 2], 1_000, random)[:2] == (1, 2)
    assert label_splits.tests(rates, [0], 1_000, random) == (None, 1, 1_000)
    assert label_splits.tests(rates, [], 1_000, random) == (None, 0, 0)


@pytest.mark.slow
def test_a_finished_cell_is_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(label_splits, "TOTALS", (3_000,))
    monkeypatch.setattr(sys, "argv", ["label_splits", "tables", "--worlds", "1", "--out", str(tmp_path / "cells.json")])
    label_splits.main()
    first = capsys.readouterr().out
    monkeypatch.setattr(label_splits, "played", None)
    label_splits.main()
    assert capsys.readouterr().out == first
    assert first.count("of 1 |") == len(label_splits.SPLITS)


def test_a_run_that_released_nothing_ranks_behind_all_others() -> None:
    rest = {"tested": 1, "labels": 10, "draws": 5, "optimum": 1.0, "mixture": False, "mixture_rate": 0.04}
    good = Ended(released=3, gap=0.2, rate=0.04, best=0.1, certifiable=0.2, **rest)  # type: ignore[arg-type]
    none = Ended(released=None, gap=None, rate=None, best=0.1, certifiable=None, **rest)  # type: ignore[arg-type]
    split = label_splits.SPLITS[0].name
    cells = {f"tables/6000/{split}/{seed}": vars(one) for seed, one in enumerate((good, none, none))}
    assert f"| 6,000 | {split} | 1 of 3 | 0 | none | none | none | 0 | 1.00 | 10 |" in table(cells, "tables")
