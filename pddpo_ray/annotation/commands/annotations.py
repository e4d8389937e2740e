"""`pddpo annotations`: what people said as files, and other annotation tools in the place of our page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pddpo_ray.annotation.commands.decide import decide
from pddpo_ray.annotation.commands.found_queue import find_queue, queue_of
from pddpo_ray.annotation.commands.personal_data import data_of, erase
from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.errors import UserError

if TYPE_CHECKING:
    from pddpo_ray.annotation.connectors import Connector

app = typer.Typer(
    help="Labels of people: decisions, files, other tools.", no_args_is_help=True,
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip

app.command("decide")(decide)
app.command("data-of")(data_of)
app.command("erase")(erase)

KEYS = {"label-studio": "LABEL_STUDIO_API_KEY", "argilla": "ARGILLA_API_KEY"}


class Dimension(StrEnum):
    helpful = "helpful"
    harmless = "harmless"


class Tool(StrEnum):
    label_studio = "label-studio"
    argilla = "argilla"


Run = Annotated[Path, typer.Option(help="Run folder, or the folder of `annotate --questions`.", metavar="DIR")]
JournalUrl = Annotated[str | None, typer.Option("--journal", help="Database URL, where the recipe names one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ToolOption = Annotated[Tool, typer.Option("--tool", help="label-studio or argilla.")]
Url = Annotated[str, typer.Option("--url", help="Address of the tool.")]
Workspace = Annotated[str, typer.Option(help="Argilla's workspace; needed if the key opens several.")]


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="File to write: .jsonl, .jsonl.gz, .parquet or .arrow.", metavar="FILE")],
    to: Annotated[
        str,
        typer.Option("--to", help="labels: every answer with who and when; or a format of `pddpo data convert`."),
    ] = "pku",
    dimension: Annotated[Dimension, typer.Option(help="Which preference, where a format knows one.")] = (
        Dimension.helpful
    ),
    round_: Annotated[int | None, typer.Option("--round", min=0, help="Only this round.")] = None,
    journal: JournalUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write what people said.

    A complete PKU-SafeRLHF row per compared pair, any other format, or all there is.
    """
    from pddpo_ray.annotation.label_rows import LABELS, write_label_file

    with queue_of(run, journal, to_read=True) as (store, _):
        written = write_label_file(store, out, to, dimension=dimension.value, round_=round_)
    target = {"file": str(out) if written.rows else "none: there is no label yet"}
    _show(({"rows": written.rows} if to == LABELS else asdict(written)) | target, as_json)


@app.command()
def backup(
    run: Run,
    out: Annotated[Path, typer.Option(help="File to write; it must not be there yet.", metavar="FILE")],
    journal: JournalUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write journal and labels to one file, also while people answer."""
    from pddpo_ray.annotation.backup import backup as write_backup

    write_backup(find_queue(run, journal).database, out)
    _show({"file": str(out), "bytes": out.stat().st_size}, as_json)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="What `backup` wrote.", metavar="FILE")],
    run: Run,
    journal: JournalUrl = None,
    as_json: AsJson = False,
) -> None:
    """Put journal and labels back from one file.

    End the run and its page first. The journal that was there is kept.
    """
    from pddpo_ray.annotation.backup import restore as put_back
    from pddpo_ray.journal.server_lock import served_at
    from pddpo_ray.storage.whole_files import JOURNAL

    database = journal or str(run.expanduser().absolute() / JOURNAL)
    if address := served_at(database):
        raise UserError(f"the page is served at {address}: end it before anything is restored")
    old_path = put_back(file, database)
    _show({"restored": str(file)} | ({} if old_path is None else {"earlier journal": str(old_path)}), as_json)


@app.command("import")
def import_(
    files: Annotated[list[str], typer.Argument(help="Files with labels, in any format of `pddpo data`.")],
    run: Run,
    person: Annotated[str | None, typer.Option("--who", help="The one person who gave these labels.")] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="Format, where it is not recognised; labels: of `export --to labels`."),
    ] = None,
    journal: JournalUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take labels from files as a person's answers.

    They answer this run's questions; with --format labels they are those of the people who gave them. Importing again
    changes nothing.
    """
    from pddpo_ray.annotation.label_rows import LABELS

    if form == LABELS:
        _import_labels(files, run, journal, as_json)
        return
    if person is None:
        raise UserError("--who is missing: name the one person who gave these labels, or use --format labels")
    from pddpo_ray.annotation.queue.exchange import all_questions, answers_in, take_answers
    from pddpo_ray.data import Settings, inspect
    from pddpo_ray.data.checks.inspection import BETWEEN
    from pddpo_ray.data.convert import rendering

    prompt = rendering("plain", None, None).prompt
    # Equal rows and both orders of a pair are no fault here: one text may be asked about more than once.
    inspection = inspect(files, Settings(format=form, keep=frozenset(BETWEEN), judged=False))
    with queue_of(run, journal) as (store, rules):
        answers, problems = answers_in(inspection.examples(), all_questions(store), person, prompt)
        report = take_answers(store, rules, "file", answers)
    problems = [str(problem) for problem in inspection.problems] + problems
    lines = problems + report.not_taken
    for line in () if as_json else lines:
        typer.echo(f"left out: {line}", err=True)
    _show({**dict(sorted(report.outcomes.items())), "left_out": lines if as_json else len(lines)}, as_json)


def _import_labels(files: list[str], run: Path, journal: str | None, as_json: bool) -> None:
    from pddpo_ray.annotation.label_rows import read_label_rows, take_label_rows

    with queue_of(run, journal) as (store, rules):
        rows = [row for file in files for row in read_label_rows(Path(file))]
        report = take_label_rows(store, rules, rows)
    for line in () if as_json else report.not_taken:
        typer.echo(f"left out: {line}", err=True)
    refusals: int | list[str] = report.not_taken if as_json else len(report.not_taken)
    _show({**dict(sorted(report.outcomes.items())), "left_out": refusals}, as_json)


@app.command()
def push(
    run: Run, tool: ToolOption, url: Url, workspace: Workspace = "", journal: JournalUrl = None, as_json: AsJson = False
) -> None:
    """Put the run's open questions into another tool. The key comes from LABEL_STUDIO_API_KEY or ARGILLA_API_KEY."""
    from pddpo_ray.annotation.queue.exchange import open_questions

    with queue_of(run, journal, to_read=True) as (store, _), _connector(tool, url, workspace, store.run) as connector:
        questions = open_questions(store)
        added = connector.push(questions)
    _show({"open": len(questions), "added": added}, as_json)


@app.command()
def pull(
    run: Run, tool: ToolOption, url: Url, workspace: Workspace = "", journal: JournalUrl = None, as_json: AsJson = False
) -> None:
    """Fetch answers from another tool; each passes the queue's own rules. Fetching again changes nothing."""
    from pddpo_ray.annotation.queue.exchange import take_answers

    with queue_of(run, journal) as (store, rules), _connector(tool, url, workspace, store.run) as connector:
        report = take_answers(store, rules, connector.name, connector.pull())
    if not as_json:
        for line in report.not_taken:
            typer.echo(f"not taken: {line}", err=True)
    refusals: int | list[str] = report.not_taken if as_json else len(report.not_taken)
    _show({**dict(sorted(report.outcomes.items())), "not_taken": refusals}, as_json)


@contextmanager
def _connector(tool: Tool, url: str, workspace: str, run: str) -> Iterator[Connector]:
    from pddpo_ray.annotation.connectors.argilla import Argilla
    from pddpo_ray.annotation.connectors.label_studio import LabelStudio

    key = os.environ.get(KEYS[tool.value])
    if not key:
        raise UserError(f"{tool.value} needs a key: set {KEYS[tool.value]} in the environment")
    connector: Connector
    connector = Argilla(url, key, run, workspace) if tool is Tool.argilla else LabelStudio(url, key, run)
    try:
        yield connector
    finally:
        connector.close()


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        print_columns([(name, str(value)) for name, value in result.items()])
