"""A reduced set of `make verify-certificates`: false certificates are rare, and ways that are wrong are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.studies.certificates.run import (
    CONTROLS,
    DRAWS,
    FACTORS,
    ON_A_LOGIT,
    RESULTS,
    SCENARIOS,
    bound,
    share_of_false,
    table,
)

RUNS = 400


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("factor", FACTORS)
def test_few_runs_get_a_false_certificate(name: str, factor: float) -> None:
    limit = 0.05 if name in ON_A_LOGIT else 0.3
    assert share_of_false(name, limit, factor, RUNS) <= bound(name, RUNS)


@pytest.mark.parametrize("name", CONTROLS)
def test_the_simulation_finds_what_is_wrong(name: str) -> None:
    limit = 0.05 if name in ON_A_LOGIT else 0.3
    assert share_of_false(name, limit, 1.0, RUNS) > bound(name, RUNS)


def test_the_committed_cells_are_whole_within_their_bounds_and_those_of_the_page() -> None:
    cells = json.loads(RESULTS.read_text())
    for name in SCENARIOS:
        for limit in (0.05,) if name in ON_A_LOGIT else DRAWS:
            for factor in FACTORS:
                cell = cells[f"{name} {limit:g} {factor:g}"]
                assert cell["runs"] == 10_000
                assert cell["false"] <= bound(name, 10_000)
    assert table(cells) in (Path(__file__).parents[3] / "lab" / "studies" / "certificates" / "README.md").read_text()
