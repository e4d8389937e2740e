"""A reduced set of `make verify-certificates`: false certificates are rare, and ways that are wrong are found."""

from __future__ import annotations

import pytest

from bench.certificates import CONTROLS, FACTORS, ON_A_LOGIT, SCENARIOS, bound, share_of_false

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
