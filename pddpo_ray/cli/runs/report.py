"""`pddpo report`: write the report of a run again."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated

import typer

from pddpo_ray.cli.output import print_json
from pddpo_ray.errors import UserError

WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def report(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="DIR")],
    out: Annotated[
        Path | None,
        typer.Option(help="File of the report; default: in the run folder, stdout where that is read-only."),
    ] = None,
    journal: Annotated[str | None, typer.Option(help="Database URL, where the recipe names one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write report.html of a run, finished or not."""
    if not run.is_dir():
        raise UserError(f"there is no run folder {run}; name the folder given to `pddpo train --run`")
    from pddpo_ray.report.build import build_report, render
    from pddpo_ray.report.run_data import read_run

    if out is None and not _may_write(run):
        if as_json:
            raise UserError(f"{run} is read-only: name the report's file with --out")
        typer.echo(render(read_run(run.absolute(), journal)))
        return
    path = build_report(run.absolute(), journal, out)
    if as_json:
        print_json({"report": str(path)})
    else:
        typer.echo(f"report: {path}")


def _may_write(folder: Path) -> bool:
    """Whether to write into the folder; root, too, leaves one without any write permission alone."""
    return os.access(folder, os.W_OK) and bool(folder.stat().st_mode & WRITE)
