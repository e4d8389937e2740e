"""One method on one tabular world: exact f and g of every round (`pddpo verify --world`)."""

from __future__ import annotations

from typing import Any

from pddpo_ray.verify.methods import Method
from pddpo_ray.verify.simulate import simulate
from pddpo_ray.worlds.tabular import TabularWorld


def run_single(world: TabularWorld, method: Method, *, rounds: int, seed: int) -> dict[str, Any]:
    """Exact optimum of the world and what each round of the method gave."""
    oracle = world.oracle
    trace = simulate(world, method, rounds=rounds, seeds=[seed])
    columns = {
        "multiplier": trace.multiplier,
        "cost_estimate": trace.estimate,
        "standard_error": trace.standard_error,
        "f_policy": trace.f_policy,
        "g_policy": trace.g_policy,
        "f_mixture": trace.f_mixture,
        "g_mixture": trace.g_mixture,
        "gap_mixture": oracle.gap_values(trace.f_mixture, trace.g_mixture),
    }
    return {
        "method": method.name,
        "seed": seed,
        "f_optimum": oracle.optimum.f,
        "g_optimum": oracle.optimum.g,
        "multiplier_optimum": oracle.optimum.multiplier,
        "rho": oracle.rho,
        "rounds": [
            {"round": k + 1} | {name: float(values[0, k]) for name, values in columns.items()} for k in range(rounds)
        ],
    }
