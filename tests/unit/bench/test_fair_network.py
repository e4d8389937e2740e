"""Four methods on the network: equal labels, worlds that nothing else used, the table by hand."""

from __future__ import annotations

from typing import Any

import pytest

from lab.studies.comparison.network import ARMS, LABELS_A_PAIR, OFFLINE, OURS, SEEDS, config_of, table
from lab.studies.comparison.run import registered
from lab.studies.exploration.run import registered as phase_registered
from lab.studies.study import seeds_between
from pddpo_ray.worlds.text.family import HELD_OUT_SEEDS


def test_nothing_else_was_run_on_its_worlds() -> None:
    seeds = (registered()["seeds"]["held_out"], phase_registered()["seeds"]["held_out"])
    used = {seed for ends in (*seeds, phase_registered()["network"]["seeds"]) for seed in seeds_between(ends)}
    assert set(SEEDS) <= set(HELD_OUT_SEEDS) - used


@pytest.mark.parametrize("name", [name for name in ARMS if name != OURS])
def test_a_compared_method_has_as_many_labels_as_ours_asked_for(name: str) -> None:
    config = config_of(name, SEEDS[0], 47_001, 3.0)
    rounds = config.rounds * config.feedback.responses if ARMS[name].certifies else 0
    pairs = config.offline.pairs + config.offline.extra
    assert config.offline.pairs == OFFLINE
    assert 47_001 - LABELS_A_PAIR < rounds + LABELS_A_PAIR * pairs <= 47_001


def test_the_table_by_hand() -> None:
    def run(gap: float | None, draws: int = 1_000) -> dict[str, Any]:
        return {
            "gap": gap, "gap_reference": 2.0, "gaps": [0.5, 0.4], "rates": [0.1, 0.03], "learning": 40_000,
            "draws": draws,
        }  # fmt: skip

    worlds = {
        "1": {name: run(0.3) for name in ARMS} | {"c-dpo": run(None, 24_000)},
        "2": {name: run(0.1) for name in ARMS} | {"c-dpo": run(0.2)},
        "3": {OURS: run(0.1)},
    }
    shown = table(worlds)
    # differences 1.7 and .1: mean .9, half width 12.706 * 1.13137 / sqrt(2)
    expected = (
        "| C-DPO | 2 | 1 | 2.00, 0.20 | 1.100 | +0.900 (-9.265 to +11.065) | 0.40, 0.40 | 3.0 %, 3.0 % | 52,500 |"
    )
    assert expected in shown
    assert "| O-PD-DPO | 2 | 2 | 0.30, 0.10 | 0.200 |  | 0.40, 0.40 | 3.0 %, 3.0 % | 41,000" in shown
