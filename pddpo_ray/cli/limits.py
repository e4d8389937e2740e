"""`pddpo limits`: limits against a file of answers, without a run; and files to try it on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.errors import UserError

SAMPLES = Path(__file__).parents[1] / "sample_data" / "limits"
app = typer.Typer(help="Limits: check a file of answers against them.", no_args_is_help=True)
VERDICT = {True: "kept", False: "BROKEN", None: "undecided"}


@app.callback()
def limits() -> None:
    """Limits: check a file of answers against them."""


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="YAML with `limits:`, a recipe or a file of its own.")],
    on: Annotated[Path, typer.Option("--on", help="JSON lines with prompt, response and perhaps set.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: limits by name.")] = False,
) -> None:
    """Measure a file of answers against limits, with intervals; nothing is trained."""
    from pddpo_ray.limits.answer_files import read_answers
    from pddpo_ray.limits.check import check as check_limits
    from pddpo_ray.scoring.limit_sources import read_limits

    checked = check_limits(read_limits(file), read_answers(on))
    if as_json:
        print_json({one.limit.name: one.as_json() for one in checked})
        return
    rows = [("limit", "", "estimate", "interval", "answers", "verdict")]
    for one in checked:
        text = one.limit.quantity.text
        interval = "none" if one.low is None or one.high is None else f"{one.low} to {one.high}"
        count = f"{one.n}" + (f", {one.failed} failed" if one.failed else "")
        estimate = text(None if one.estimate is None else one.estimate.number)
        rows.append((one.limit.name, str(one.limit), estimate, interval, count, VERDICT[one.kept]))
    print_columns(rows)
    for one in checked:
        for line in (one.note, *one.reasons):
            if line:
                typer.echo(f"{one.limit.name}: {line}")


@app.command("example")
def example(folder: Annotated[Path, typer.Argument(help="Folder that is made.")]) -> None:
    """Copy small sets of prompts, answers to them and the files of docs/limits.md into a folder."""
    if folder.exists():
        raise UserError(f"{folder} exists already; name a folder that does not")
    shutil.copytree(SAMPLES, folder)
    typer.echo(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
