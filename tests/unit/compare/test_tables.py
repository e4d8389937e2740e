"""Tables of a comparison: means and intervals by hand, and what stands in the page and the CSV files."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from pddpo_lab.compare import tables
from pddpo_lab.compare.page import render
from pddpo_lab.compare.suite import MethodsTable, Suite, SweepTable, load_suite
from tests.unit.compare.test_suite import suite_file


def row(arm: str, seed: int, gap: float, *, g: float = -0.1, reward: float = 1.0) -> dict[str, Any]:
    """A run's row as the runner writes it, with few different numbers."""
    result = {
        "gap_last": gap, "gap_mixture": gap + 0.1, "f_last": 1.0 - gap, "g_last": g, "multiplier": 0.5,
        "multiplier_optimum": 0.6, "off_support_last": 0.0, "f_optimum": 1.0, "g_optimum": 0.0, "f_reference": 0.2,
        "g_reference": 0.3, "gap_reference": 1.4, "f_covered_only": 0.5, "g_covered_only": 0.0,
        "gap_covered_only": 0.5, "seconds": 1.0,
    }  # fmt: skip
    trace = {
        "round": [1, 2], "multiplier": [0.2, 0.4], "next": [0.4, 0.5], "estimate": [0.3, -0.1],
        "standard_error": [0.1, 0.1], "g": [0.1, -0.1], "gap": [0.5, gap],
    }  # fmt: skip
    budget = {
        "pairs": 10, "labels": 20, "tokens": 100, "fits": 2, "optimiser_steps": 30, "fit_seconds": 1.0,
        "sampling_seconds": 0.5,
    }  # fmt: skip
    return {
        "arm": arm, "seed": seed, "digest": "", "algorithm": "pd-dpo", "threshold": 0.0, "result": result,
        "kl_last": 0.2, "reward_last": reward, "cost_last": g, "budget": budget, "trace": trace, "peak_mib": 12.5,
    }  # fmt: skip


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return load_suite(suite_file(tmp_path))


ROWS = [row("a", 3, 0.1), row("a", 5, 0.3), row("b", 3, 0.8), row("b", 5, 0.6)]


def test_the_standard_error_of_a_mean_by_hand() -> None:
    """1, 2, 3: standard error 1/sqrt(3)."""
    mean = tables.mean_of([1.0, None, 2.0, 3.0])
    assert mean is not None
    assert (mean.value, mean.count) == (2.0, 3)
    assert mean.error == pytest.approx(3**-0.5)


def test_one_seed_has_no_error_and_none_no_mean() -> None:
    assert tables.mean_of([0.5]) == tables.Mean(0.5, None, 1)
    assert tables.mean_of([None, float("nan")]) is None


def test_arms_are_ranked_by_their_mean_gap(suite: Suite) -> None:
    table = suite.tables[0]
    assert isinstance(table, MethodsTable)
    assert tables.ranked(ROWS[::-1], table) == ["a", "b"]


def test_errors_of_the_estimate_and_of_the_price_by_hand() -> None:
    """Errors .2 and 0: root of .02. The second half of the multipliers is .4, the optimum's .6."""
    assert tables.estimate_error(ROWS[0]) == pytest.approx(0.02**0.5)
    assert tables.multiplier_error(ROWS[0]) == pytest.approx(0.2)


def test_a_sweep_is_read_in_the_order_of_its_values(suite: Suite) -> None:
    table = suite.tables[1]
    assert isinstance(table, SweepTable)
    rows = [row("b.limit-0.5", 3, 0.4, g=0.5), row("b.limit-0", 3, 0.2, g=-0.2)]
    assert [(at, mean.value) for at, mean in tables.trend(rows, table, tables.SWEEP_COLUMNS[0])] == [
        (0.0, 0.2),
        (0.5, -0.5),
    ]


def test_every_run_and_every_round_is_a_line_of_csv(suite: Suite) -> None:
    lines = list(csv.DictReader(io.StringIO(tables.csv_of_runs(suite, ROWS))))
    assert [(line["arm"], line["seed"]) for line in lines] == [("a", "3"), ("a", "5"), ("b", "3"), ("b", "5")]
    assert float(lines[2]["gap_last"]) == 0.8
    assert float(lines[2]["peak_mib"]) == 12.5
    rounds = list(csv.DictReader(io.StringIO(tables.csv_of_traces(ROWS))))
    assert len(rounds) == 8
    assert [float(line["multiplier"]) for line in rounds[:2]] == [0.2, 0.4]


def test_the_page_holds_every_table_figure_command_and_number(suite: Suite) -> None:
    page = render(suite, [*ROWS, row("b.limit-0", 3, 0.2)], command="pddpo compare mine.yaml")
    for section in ("all", "limit", "multiplier", "methods", "budgets", "commands", "data"):
        assert f'<section id="{section}">' in page
    values = {key: float(value) for value, key in re.findall(r'<data value="([^"]+)" data-key="([^"]+)"', page)}
    assert values["all/a/gap_last"] == pytest.approx(0.2)
    assert values["all/optimum/f"] == 1.0
    assert values["budget/b/tokens"] == 100
    assert values["peak/pd-dpo"] == 12.5
    assert "pddpo train tabular rounds=2" in page
    assert page.count("<svg viewBox") >= 2
    assert "<script" not in page
    assert "http-equiv" in page


def test_failed_runs_are_named_with_their_reason(suite: Suite) -> None:
    page = render(suite, ROWS, [{"seed": 3, "arm": "b.more", "error": "the engine <died>"}])
    assert "b.more" in page
    assert "the engine &lt;died&gt;" in page


def test_a_page_without_runs_is_still_a_page(suite: Suite) -> None:
    assert "<h1>" in render(suite, [])
