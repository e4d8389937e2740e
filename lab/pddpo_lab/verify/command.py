"""`pddpo verify`: prints each claim in words with its result; exit 0 only if every check holds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pddpo_lab.verify.checks import FORMULAS, Check
from pddpo_lab.verify.experiments import (
    Curve,
    bias_table,
    compare,
    coverage_claims,
    curve,
    e2_table,
    exploration_claims,
    interval_claims,
    random_worlds_table,
    theory_table,
)
from pddpo_lab.verify.methods import COMPARED, PUBLIC, SHIPPED, Method
from pddpo_lab.verify.page import render
from pddpo_lab.verify.pieces import Pieces
from pddpo_lab.verify.simulate import simulate
from pddpo_lab.verify.split_roles import split_role_claims
from pddpo_lab.worlds.tabular.files import load_world
from pddpo_lab.worlds.tabular.world import TabularWorld, random_world, trap_world
from pddpo_ray.errors import UserError
from pddpo_ray.storage.whole_files import write_whole

SEEDS = tuple(range(10))


@dataclass(frozen=True)
class VerifyOptions:
    """What the command line was given."""

    world: str | None = None
    """World file; None: all checks on the worlds that ship."""
    method: str = "o-pd-dpo"
    rounds: int = 100
    seed: int = 0
    json: bool = False
    """Print one JSON object and nothing else."""
    full: bool = False
    """Whole tables of E2 and E3 with seeds and standard errors; interrupted, it continues with the same folder."""
    out: str = "verify"
    """Folder for verify.json and verify.html."""


def main(options: VerifyOptions) -> int:
    """Runs what was asked for. Returns the exit code; UserError where the request cannot be met."""
    if options.world is not None:
        return _one_world(options)
    say: Callable[[str], None] = (lambda line: None) if options.json else print
    folder = Path(options.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        result, curves, world = run_verify(full=options.full, progress=say, folder=folder)
        (folder / "verify.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error}; choose another folder with --out") from None
    page = write_whole(folder / "verify.html", render(world, curves, result["checks"]))
    if options.json:
        print(json.dumps(result))
    else:
        _print_table(result["checks"])
        print(f"{folder / 'verify.json'}, {page}")
    return 0 if result["passed"] else 1


def run_verify(
    *,
    full: bool = False,
    seeds: Sequence[int] = SEEDS,
    progress: Callable[[str], None] = print,
    folder: Path | None = None,
) -> tuple[dict[str, Any], dict[str, Curve], TabularWorld]:
    """All checks as plain values for verify.json, the curves for the plots, and the world they are about.

    The long tables come first and their rows are kept in `folder`, so that an interrupted run continues there.
    """
    began = time.monotonic()
    world = trap_world()
    tables = full_tables(world, Pieces(folder), progress) if full else {}
    checks = [check(world) for check in FORMULAS]
    for seed in (0, 1):
        drawn = random_world(seed)
        checks += [_named(check(drawn), f"random world {seed}") for check in FORMULAS[:6]]
    progress(f"{len(checks)} formulas checked")
    checks += split_role_claims()
    checks += interval_claims()
    curves = compare(world, COMPARED, rounds=300, seeds=seeds, progress=progress)
    at_100 = curve(world, SHIPPED, rounds=100, seeds=seeds)
    checks += exploration_claims(world, curves, at_100)
    checks += coverage_claims(world, rounds=100, seeds=seeds[:4])
    result: dict[str, Any] = {
        "passed": all(check.passed for check in checks),
        "f_optimum": world.oracle.optimum.f,
        "multiplier_optimum": world.oracle.optimum.multiplier,
        "rho": world.oracle.rho,
        "checks": [asdict(check) for check in checks],
        "experiments": [one.row() for one in curves.values()],
        "bias_of_the_clipped_logit": bias_table(),
        **tables,
    }
    result["seconds"] = round(time.monotonic() - began, 1)
    return result, curves, world


def full_tables(world: TabularWorld, pieces: Pieces, progress: Callable[[str], None]) -> dict[str, Any]:
    """The tables of `--full` and the processor time that they took."""
    return {
        "e2": e2_table(world, seeds=SEEDS, progress=progress, pieces=pieces),
        "random_worlds": random_worlds_table(worlds=15, progress=progress, pieces=pieces),
        "e3": theory_table(world, progress=progress, pieces=pieces),
        "cpu_minutes_of_the_tables": round(pieces.cpu_minutes, 1),
    }


def _one_world(options: VerifyOptions) -> int:
    if options.method not in PUBLIC:
        raise UserError(f"unknown method {options.method!r}; there are {', '.join(PUBLIC)}")
    if options.rounds < 1:
        raise UserError(f"--rounds must be at least 1, got {options.rounds}")
    if options.seed < 0:
        raise UserError(f"--seed must be at least 0, got {options.seed}")
    assert options.world is not None
    world = load_world(options.world)
    if world.oracle.further:
        names = ", ".join(limit.name for limit in world.oracle.further)
        limits = " ".join(
            f"'limits.{limit.name}={{logit: {{world: {limit.name}}}, at_most: {limit.threshold:g}, labels_each: 64}}'"
            for limit in world.oracle.further
        )
        raise UserError(
            f"{options.world} limits {names} too, and this command runs one limit: use `pddpo train tabular"
            f" world.path={options.world} {limits}`"
        )
    result = {"world": options.world} | run_single(
        world, PUBLIC[options.method], rounds=options.rounds, seed=options.seed
    )
    if options.json:
        print(json.dumps(result))
    else:
        _print_rounds(result)
    return 0


def _named(check: Check, world: str) -> Check:
    in_words = f"{check.in_words.removesuffix('.')} ({world})."
    return replace(check, in_words=in_words, claim=f"{check.claim} ({world})")


def _print_table(checks: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("claim", "measured", "must be", "result")
    for check in checks:
        style, verdict = (None, "holds") if check["passed"] else ("bold red", "FAILS")
        table.add_row(check["in_words"], f"{check['value']:.4g}", check["reference"], verdict, style=style)
    Console().print(table)
    failed = [f"{check['in_words']} Measured: {check['claim']}." for check in checks if not check["passed"]]
    print("\n".join([f"{len(checks) - len(failed)} of {len(checks)} claims hold.", *failed]))


def _print_rounds(result: dict[str, Any]) -> None:
    print(
        f"{result['method']}, seed {result['seed']}: f* {result['f_optimum']:.4f}, lambda* "
        f"{result['multiplier_optimum']:.4f}, rho {result['rho']:.4f}"
    )
    print(f"{'round':>6} {'lambda':>8} {'cost':>8} {'f':>8} {'g':>8} {'f mix':>8} {'g mix':>8} {'gap':>8}")
    for row in result["rounds"]:
        print(
            f"{row['round']:>6} {row['multiplier']:>8.4f} {row['cost_estimate']:>8.4f} {row['f_policy']:>8.4f} "
            f"{row['g_policy']:>8.4f} {row['f_mixture']:>8.4f} {row['g_mixture']:>8.4f} {row['gap_mixture']:>8.4f}"
        )


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
