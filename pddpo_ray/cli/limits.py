"""`pddpo limits`: limits against a file of answers, without a run; and files to try it on."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Annotated

import typer

from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.errors import UserError

SAMPLES = Path(__file__).parents[1] / "sample_data" / "limits"
app = typer.Typer(help="Check a file of answers against limits.", no_args_is_help=True)
VERDICT = {True: "kept", False: "BROKEN", None: "undecided"}


@app.callback()
def limits() -> None:
    """Check a file of answers against limits."""


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="YAML with `limits:`, a recipe or a file of its own.")],
    on: Annotated[Path, typer.Option("--on", help="JSON lines with prompt, response and perhaps set.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: limits by name.")] = False,
) -> None:
    """Measure a file of answers against limits.

    With intervals; nothing is trained.
    """
    from pddpo_ray.limits.answer_files import read_answers
    from pddpo_ray.limits.check import check as check_limits
    from pddpo_ray.scoring.sources.opening import read_limits

    checks = check_limits(read_limits(file), read_answers(on))
    if as_json:
        print_json({item.limit.name: item.as_json() for item in checks})
        return
    rows = [("limit", "", "estimate", "interval", "answers", "verdict")]
    for item in checks:
        text = item.limit.quantity.text
        interval = "none" if item.low is None or item.high is None else f"{item.low} to {item.high}"
        count = f"{item.n}" + (f", {item.failed} failed" if item.failed else "")
        estimate = text(None if item.estimate is None else item.estimate.number)
        rows.append((item.limit.name, str(item.limit), estimate, interval, count, VERDICT[item.kept]))
    print_columns(rows)
    for item in checks:
        kinds = ", ".join(f"{count} {kind}" for kind, count in item.kinds.items())
        missing = f"{item.failed} without a number count as the worst in the interval: {kinds}" if item.failed else ""
        for line in (item.note, missing, *item.reasons):
            if line:
                typer.echo(f"{item.limit.name}: {line}")


@app.command("suggest")
def suggest(
    file: Annotated[Path, typer.Argument(help="YAML with `limits:`, and with `prompts:` for --model.")],
    on: Annotated[Path | None, typer.Option("--on", help="JSON lines with several answers to each prompt.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model that answers the file's prompts: folder, hub name, RUN@reference.")
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="Answers to each prompt, with --model.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer, with --model.")] = 128,
    seed: Annotated[int, typer.Option(help="Seed of the answers, with --model.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Write the model's answers there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say which limits a model can reach.

    What it does now, and what choosing among its answers would reach.
    """
    from pddpo_ray.limits.answer_files import read_answers
    from pddpo_ray.limits.suggest import suggest as suggest_limits
    from pddpo_ray.scoring.sources.opening import read_limits

    if (on is None) == (model is None):
        raise UserError("give either --on, a file with several answers to each prompt, or --model, who writes them")
    limits = read_limits(file)
    if on is not None:
        answers = read_answers(on)
    else:
        from pddpo_ray.evaluate.sampled_answers import sampled, written

        answers = sampled(file, str(model), samples=samples, max_tokens=max_tokens, seed=seed)
        if save is not None:
            written(answers, save)
    advice = suggest_limits(limits, answers)
    if as_json:
        print_json(
            {
                "limits": {entry.now.limit.name: entry.as_json() for entry in advice.limits},
                "jointly": advice.jointly,
                "answers_each": advice.answers_each,
            }
        )
        return
    rows = [("limit", "", "now", "best of its answers", "prompts that none keeps")]
    for entry in advice.limits:
        share = "" if entry.broken is None else f"{100 * entry.broken:.3g} %"
        now = entry.now.limit.quantity.text(None if entry.now.estimate is None else entry.now.estimate.number)
        rows.append((entry.now.limit.name, str(entry.now.limit), now, str(entry.best or "unknown"), share))
    print_columns(rows)
    if advice.jointly is not None:
        verdict = "can all be kept" if advice.jointly else "cannot all be kept"
        typer.echo(f"by choosing among {advice.answers_each:.3g} answers a prompt the limits {verdict} at once")
    typer.echo("training can reach what no sampled answer showed: take this as advice")


@app.command("example")
def example(folder: Annotated[Path, typer.Argument(help="Folder that is made.")]) -> None:
    """Write limits and answers to try `check` on.

    With small sets of prompts and the files of docs/limits.md.
    """
    if folder.exists():
        raise UserError(f"{folder} exists already; name a folder that does not")
    shutil.copytree(SAMPLES, folder)
    typer.echo(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    file, answers = (shlex.quote(str(folder / name)) for name in ("limits.yaml", "answers.jsonl"))
    print_columns([("next", f"`pddpo limits check {file} --on {answers}` checks the answers against the limits")])
