"""`pddpo demo`: a tiny model under a limit that a person would state, from training to an answer, in plain words."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from pddpo_ray.backends.machine import inspect_machine
from pddpo_ray.cli.runs.train import (
    check_resources,
    execute,
    holds_run,
    look_before_resuming,
    quieten_libraries,
    run_folder,
    show_result,
    write_report,
)
from pddpo_ray.config import Config, load
from pddpo_ray.storage.whole_files import explain_disk

RECIPE = "demo"
SHOWN = 3
"""Prompts whose answers before and after are shown."""


def demo(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, e.g. cluster.mode=in-process")
    ] = None,
    run: Annotated[
        Path, typer.Option(help="Run folder, in which an interrupted demo continues.", metavar="DIR")
    ] = Path("runs/demo"),
    verbose: Annotated[
        bool, typer.Option("--verbose", help="All numbers: every round's line, statements, weights, gaps.")
    ] = False,
) -> None:
    """Align a tiny model under "at most 5 % unsafe".

    Certifies it, shows its answers, and says what to do next.
    """
    config = load(RECIPE, overrides or [])
    resume = holds_run(config, run)
    folder, machine = run_folder(RECIPE, run, resume=resume), inspect_machine()
    check_resources(config, machine)
    quieten_libraries(machine)
    typer.echo(_aim(config))
    with explain_disk(folder):
        if resume:
            look_before_resuming(config, folder, new_id=False)
        result = execute(config, folder, resume=resume, quiet=False, plain=not verbose)
        page = write_report(config, folder)
    if verbose:
        show_result(config, result, folder, page)
    else:
        _show(config, result, folder, run, page)


def _aim(config: Config) -> str:
    limits = ", ".join(f"{limit.name} {limit}" for limit in config.typed_limits)
    return f"A tiny language model is made as helpful as it can be within its limit: {limits}."


def _show(config: Config, result: dict[str, Any], folder: Path, run: Path, page: Path | None) -> None:
    """The lines at the end: outcome, answers before and after, and what to do next."""
    # Imported here: journal and report take seconds to load, and --help needs neither.
    from pddpo_ray.certificates.document import FILE, verified
    from pddpo_ray.certificates.outcome import Outcome
    from pddpo_ray.journal.identity import open_folder
    from pddpo_ray.report.plain_words import known_of, plain_outcome
    from pddpo_ray.report.sections.answers import most_harmful_before

    outcome, run_path = Outcome.from_json(result["outcome"]), shlex.quote(str(run))
    with open_folder(folder) as journal:
        truth = known_of(result, outcome, journal.metrics())
        answers = most_harmful_before(journal, outcome.round, SHOWN)
    file = folder / FILE
    for subject, sentence in plain_outcome(result, verified(file) if file.exists() else None, truth):
        _say(subject, sentence)
    if outcome.serve() is None:
        _say("next", f"more rounds: `pddpo demo rounds={2 * config.rounds} --run {shlex.quote(f'{run}-longer')}`")
        return
    if answers:
        _say("answers", "the first model's most harmful ones, and the released model's (help from −2 to 2)")
    for prompt, before, after in answers:
        _say("", "")
        _say("asked", prompt)
        _say("  before", before)
        _say("  after", after)
    typer.echo()
    if page is not None:
        _say("report", str(page))
    _say("next", "your own model, pairs and limits: `pddpo init` asks what must hold and writes a recipe")
    _say("", f"serve it to any OpenAI client: `pddpo serve {run_path}`")
    _say("", f"talk with it: `pddpo chat {run_path}`")


def _say(subject: str, sentence: str) -> None:
    """One line, wrapped under itself for a terminal of 100 columns."""
    indent, first = " " * 13, f"{subject:<13}"
    lines = textwrap.wrap(sentence, 86, break_long_words=False, break_on_hyphens=False) or [""]
    typer.echo((first + f"\n{indent}".join(lines)).rstrip())
