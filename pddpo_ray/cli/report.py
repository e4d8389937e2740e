"""`pddpo report`: write the report of a run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pddpo_ray.cli.output import print_json
from pddpo_ray.errors import UserError


def report(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="DIR")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write report.html of a run, finished or not, from its journal."""
    if not run.is_dir():
        raise UserError(f"there is no run folder {run}; name the folder given to `pddpo train --run`")
    from pddpo_ray.report.build import build_report

    path = build_report(run.absolute())
    if as_json:
        print_json({"report": str(path)})
    else:
        typer.echo(f"report: {path}")
