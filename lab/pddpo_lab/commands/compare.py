"""`pddpo compare`: methods side by side on several seeds, or one's own runs; one page."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.errors import RunError, UserError

if TYPE_CHECKING:
    from pddpo_lab.compare.command import RunUnits


def compare(
    suite: Annotated[
        str, typer.Argument(help="A suite (tabular, text-world, text-small, real-text), file, `paper`, or run folders.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings for every run, e.g. rounds=8; paper: NAME=SOURCE."),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Folder of all runs; default runs/compare-SUITE.", metavar="DIR")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, e.g. 0,1,2; default: the suite's.", metavar="LIST")] = "",
    only: Annotated[str, typer.Option(help="Only these arms, e.g. o-pd-dpo,pd-dpo.", metavar="LIST")] = "",
    jobs: Annotated[
        int, typer.Option(min=0, help="Units at a time, each a Ray task with a CPU; 0: one by one in this process.")
    ] = 2,
    address: Annotated[str | None, typer.Option(help="A running Ray cluster; default: a session here.")] = None,
    page_only: Annotated[bool, typer.Option("--page", help="Run nothing; write the page of what is finished.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="paper: print where it has which model and what trains it; run nothing."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run every method of a suite on several seeds.

    Writes compare.html; given again, it continues where it was.

    `pddpo compare paper` trains nothing: it evaluates published models, and ours by their runs, side by side.
    `pddpo compare RUN...` neither: table and curves of your own runs, in compare-runs.html beside them (or in --runs).
    """
    if dry_run and suite != "paper":
        raise UserError("--dry-run is of `pddpo compare paper`, whose models are trained elsewhere")
    if Path(suite).expanduser().is_dir():
        _own([suite, *(overrides or [])], runs, as_json=as_json)
        return
    if suite == "paper":
        _paper(overrides or [], runs, dry_run=dry_run, as_json=as_json)
        return
    from pddpo_lab.compare import command
    from pddpo_lab.compare.suite import load_suite

    chosen = load_suite(suite, seeds=_numbers(seeds), only=_words(only), overrides=overrides or [])
    folder = (runs or Path("runs") / f"compare-{chosen.name}").expanduser().absolute()
    given = ["pddpo", "compare", suite, *(overrides or [])]
    given += ["--seeds", seeds] if seeds else []
    given += ["--only", only] if only else []
    if page_only:
        failures = []
        command.write_page(chosen, folder, command=shlex.join(given))
    else:
        run_units = command.run_here if jobs == 0 else _over_ray(jobs, address)
        failures = command.compare(
            chosen, folder, run_units, lambda line: typer.echo(line, err=True), shlex.join(given)
        )
    page = folder / command.PAGE
    if as_json:
        print_json({"page": str(page), "runs": str(folder), "failed": failures})
    else:
        typer.echo(f"page: {page}")
    if failures:
        names = ", ".join(f"seed {row['seed']} {row['arm']}" for row in failures)
        raise RunError(f"{len(failures)} of the suite's runs failed: {names}; the page says why")


def _paper(given: list[str], out: Path | None, *, dry_run: bool, as_json: bool) -> None:
    from pddpo_lab.compare.paper import compare_paper, load_paper, planned
    from pddpo_ray.evaluate.command import PAGE

    if dry_run:
        rows = planned(load_paper(given))
        if as_json:
            print_json({"rows": [dict(zip(("shown", "model", "source"), row, strict=True)) for row in rows]})
        else:
            print_columns([("in the paper", "model", "source, or what trains it"), *rows])
        return

    folder = (out or Path("runs") / "compare-paper").expanduser().absolute()
    line = shlex.join(["pddpo", "compare", "paper", *given])
    result = compare_paper(load_paper(given), folder, lambda text: typer.echo(text, err=True), line)
    if as_json:
        print_json({"page": str(folder / PAGE), **result})
    else:
        typer.echo(f"page: {folder / PAGE}")


def _own(folders: list[str], out: Path | None, *, as_json: bool) -> None:
    from pddpo_lab.compare.own_runs import compare_runs
    from pddpo_ray.report.text import seconds, short

    path, rows = compare_runs(folders, out, shlex.join(["pddpo", "compare", *folders]))
    if as_json:
        print_json({"page": str(path), "runs": rows})
        return
    headings = ("run", "method", "rounds", "released", "gap", "labels", "time", "limits")
    lines = [
        (row["run"], str(row["method"]), f"{row['rounds']} of {row['of']}", row["released"] or "none",
         short(row["gap"]),
         f"{row['labels']:,}", seconds(row["seconds"]), "; ".join(f"{k}: {said}" for k, said in row["limits"].items()))
        for row in rows
    ]  # fmt: skip
    print_columns([headings, *lines])
    typer.echo(f"page: {path}")


def _over_ray(jobs: int, address: str | None) -> RunUnits:
    # Imported here: Ray takes seconds to load, and --jobs 0 does without it.
    from pddpo_lab.compare.suite_jobs import run_over_ray

    return functools.partial(run_over_ray, jobs=jobs, address=address)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise UserError(f"--seeds {text}: write whole numbers with commas, e.g. 0,1,2") from None
