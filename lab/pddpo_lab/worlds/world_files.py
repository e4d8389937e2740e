"""A table's world as the content of a world file."""

from __future__ import annotations

from typing import Any

from pddpo_lab.worlds.tabular.files import FURTHER, MEASURES, NUMBERS
from pddpo_lab.worlds.tabular.world import TabularWorld


def world_json(world: TabularWorld) -> dict[str, Any]:
    """The world in the format of a world file."""
    oracle = world.oracle
    rows = [
        {"prompt": r.prompt, "answers": [r.first, r.second]}
        | {key: value for key, value in (("better", r.better), ("costlier", r.costlier)) if value is not None}
        for r in world.offline_rows
    ]
    return (
        {
            "prior": oracle.prior.tolist(),
            **{key: getattr(oracle, key).tolist() for key in ("reference", "reward", "cost")},
            "baseline": world.baseline.tolist(),
            **{key: getattr(oracle, key) for key in NUMBERS},
            "offline": {"rows": rows} if rows else {"covered": world.covered.tolist(), "pairs": world.offline_pairs},
        }
        | (
            {FURTHER: {one.name: {"cost": one.cost.tolist(), "threshold": one.threshold} for one in oracle.further}}
            if oracle.further
            else {}
        )
        | ({MEASURES: {name: table.tolist() for name, table in world.measures.items()}} if world.measures else {})
    )
