"""A reduced set of the coverage of printed intervals; and that every function that makes one has a row there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lab.studies.certificates.coverage import LEVEL, ROWS, coverage, key_of, least_allowed, table
from tests.support.tiers import in_full

ROOT = Path(__file__).parents[3]
MAKERS = {
    "interval", "bounded_interval", "bounded_ends", "clopper_pearson", "mean_interval", "rate_interval",
    "binomial_low", "binomial_high", "upper_bound", "lower_bound", "student_half_width",
}  # fmt: skip
"""Functions of `theory` that make an interval, or one of its ends."""
BEHIND = {
    "bounded_ends": "estimate_interval.interval", "binomial_low": "limits.drawn.estimated",
    "binomial_high": "limits.drawn.estimated",
}  # fmt: skip
"""Parts of functions that have rows."""
IN_MAKE_TEST = ("rate", "rate in a file", "bound of a certificate")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name if name in IN_MAKE_TEST else in_full(name)[0] for name in ROWS])
def test_every_printed_interval_covers_at_its_level_less_2_points(name: str) -> None:
    """First, middle and last regime of each row, 150 runs each."""
    regimes = ROWS[name].regimes
    for regime in (regimes[0], regimes[len(regimes) // 2], regimes[-1]):
        assert coverage(name, regime, 150) >= least_allowed(150), key_of(name, regime)


@pytest.mark.full
@pytest.mark.slow
def test_an_audit_by_a_machine_that_calls_too_much_unsafe_is_covered_at_rare_rates() -> None:
    """Where the machine calls a fifth of the safe answers unsafe and people see 24 of 240."""
    for rate in (0.003, 0.02):
        assert coverage("audit of a round", (rate, 240), 400) >= LEVEL - 0.02


@pytest.mark.slow
def test_no_module_prints_an_interval_of_a_function_without_a_row() -> None:
    shown = {part.strip().rpartition(".")[2] for row in ROWS.values() for part in row.function.split(",")}
    used = {
        alias.name
        for folder in ("pddpo_ray", "actors", "deploy", "lab/pddpo_lab")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pddpo_ray.theory")
        for alias in node.names
        if alias.name in MAKERS
    }
    assert used - shown - set(BEHIND) == set()
    assert {"interval", "clopper_pearson", "upper_bound"} <= used


def test_the_table_names_the_worst_regime_of_every_row() -> None:
    first, second = ROWS["exact share"].regimes[:2]
    cells = {key_of("exact share", first): {"covered": 0.99}, key_of("exact share", second): {"covered": 0.96}}
    (line,) = [line for line in table(cells).splitlines() if line.startswith("| exact share")]
    assert line.endswith("| 2 | 96.0 % | 0.003, 200 |")
