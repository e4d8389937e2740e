"""`pddpo verify`: check the mathematics against independent answers, or run a method on a tabular world."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pddpo_ray.errors import UserError


def verify(
    world: Annotated[
        Path | None, typer.Option(help="A tabular world of your own (JSON); runs one method on it.", metavar="FILE")
    ] = None,
    method: Annotated[str | None, typer.Option(help="With --world: the method, e.g. o-pd-dpo or pd-dpo.")] = None,
    rounds: Annotated[int | None, typer.Option(help="With --world: number of rounds K.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of all draws.", min=0)] = 0,
    full: Annotated[bool, typer.Option("--full", help="The whole tables with all seeds and standard errors.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for verify.json and verify.html.", metavar="DIR")] = Path(
        "runs/verify"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check formulas and guarantees.

    Exit 0 only if each check holds.
    """
    if world is None and (method is not None or rounds is not None):
        raise UserError("--method and --rounds select a run on a world: add --world FILE")
    if world is not None and not world.is_file():
        raise UserError(f"--world {world} does not exist; give the path of a world file (JSON)")
    from pddpo_lab.verify.command import VerifyOptions, main

    chosen = VerifyOptions(seed=seed, json=as_json, full=full, out=str(out))
    if world is not None:
        chosen = replace(chosen, world=str(world), method=method or chosen.method, rounds=rounds or chosen.rounds)
    raise typer.Exit(main(chosen))
