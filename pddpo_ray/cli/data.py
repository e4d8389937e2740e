"""`pddpo data`: check, convert and describe preference data."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.errors import RunError, UserError

if TYPE_CHECKING:
    from pddpo_ray.data import Inspection, Settings
    from pddpo_ray.data.convert import Rendering

app = typer.Typer(
    help="Check, convert and describe preference data.", no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip


class Means(StrEnum):
    helpful = "helpful"
    harmless = "harmless"
    both = "both"


Files = Annotated[list[str], typer.Argument(help="Files, folders, run folders, or hf:owner/name:split.")]
Form = Annotated[str | None, typer.Option("--format", help="Format of the files; recognised if not given.")]
MeansOption = Annotated[Means, typer.Option(help="What `chosen` stands for where the format does not tell.")]
HeldOut = Annotated[
    list[str] | None, typer.Option(help="Files of another split, whose prompts must not occur here; repeat it.")
]
Keep = Annotated[
    list[str] | None,
    typer.Option(help="Do not set aside: duplicate, duplicate-id, contradiction or leakage; repeat it."),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column", help="A field's name here and in the files, e.g. prompt=question; repeat it.", metavar="NAME=THEIRS"
    ),
]
Ignore = Annotated[list[str] | None, typer.Option(help="A field to leave out on purpose; repeat it.", metavar="FIELD")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first problem with exit code 1.")]
LineMb = Annotated[float, typer.Option(help="Longest line or text, in MiB.", min=0.001)]
Tokenizer = Annotated[Path | None, typer.Option(help="Folder of a tokenizer: lengths in tokens.", metavar="DIR")]
TemplateName = Annotated[
    str,
    typer.Option(
        "--template",
        help="How a prompt becomes text: plain, hh, safe-rlhf, alpaca, chatml, tokenizer, or tokenizer-or-NAME.",
    ),
]
MaxTokens = Annotated[
    int | None, typer.Option(help="Set aside rows whose prompt and longest answer are longer.", min=1)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quarantine = Annotated[Path | None, typer.Option(help="Where rows that are set aside go (JSON lines).", metavar="FILE")]
Show = Annotated[int, typer.Option(help="Problems shown in words; all are counted.", min=0, max=1000)]


@app.command()
def check(
    files: Files,
    format_: Form = None,
    means: MeansOption = Means.helpful,
    held_out: HeldOut = None,
    keep: Keep = None,
    column: Columns = None,
    ignore: Ignore = None,
    strict: Strict = False,
    quarantine: Quarantine = None,
    max_line_mb: LineMb = 8.0,
    tokenizer: Tokenizer = None,
    template: TemplateName = "tokenizer-or-plain",
    max_tokens: MaxTokens = None,
    show: Show = 20,
    as_json: AsJson = False,
) -> None:
    """Find bad rows, repeats, contradictions and leaks. Exit 0: all good; 1: something is wrong."""
    from pddpo_ray.data.checks.inspection import inspect
    from pddpo_ray.data.convert import rendering, set_aside_all

    renderer = rendering(template, tokenizer, max_tokens)
    settings = _settings(files, format_, means, keep, strict, max_line_mb, renderer, column, ignore)
    inspection = inspect(files, settings, held_out=held_out or [])
    set_aside = set_aside_all(inspection, quarantine)
    _report({"command": "check", **_numbers(inspection, renderer), "quarantine": set_aside}, inspection, show, as_json)
    if inspection.kinds:
        raise typer.Exit(1)


@app.command()
def convert(
    files: Files,
    out: Annotated[Path, typer.Option(help="File to write: .jsonl, .jsonl.gz, .parquet or .arrow.", metavar="FILE")],
    to: Annotated[str, typer.Option(help="pku, pku-qa, hh, trl, trl-chat, pairs, answers or prompts.")] = "pku",
    format_: Form = None,
    means: MeansOption = Means.helpful,
    held_out: HeldOut = None,
    keep: Keep = None,
    column: Columns = None,
    ignore: Ignore = None,
    strict: Strict = False,
    quarantine: Quarantine = None,
    max_line_mb: LineMb = 8.0,
    tokenizer: Tokenizer = None,
    template: TemplateName = "tokenizer-or-plain",
    max_tokens: MaxTokens = None,
    show: Show = 20,
    as_json: AsJson = False,
) -> None:
    """Write the good rows in another format.

    Bad ones go to a quarantine file beside it.
    """
    from pddpo_ray.data.checks.inspection import inspect
    from pddpo_ray.data.convert import convert as write
    from pddpo_ray.data.convert import rendering

    renderer = rendering(template, tokenizer, max_tokens)
    settings = _settings(files, format_, means, keep, strict, max_line_mb, renderer, column, ignore)
    target = write(out, to, "harmless" if means is Means.harmless else "helpful", renderer)
    inspection = inspect(files, settings, held_out=held_out or [])
    written, unlabelled, set_aside = target(inspection, quarantine)
    numbers = {"command": "convert", **_numbers(inspection, renderer), "quarantine": set_aside}
    numbers |= {"out": str(out), "to": to, "written": written, "unlabelled": unlabelled}
    _report(numbers, inspection, show, as_json)
    if not written:
        raise RunError(f"no row could be written to {out}; the problems are listed above")


@app.command()
def stats(
    files: Files,
    format_: Form = None,
    means: MeansOption = Means.helpful,
    keep: Keep = None,
    column: Columns = None,
    ignore: Ignore = None,
    max_line_mb: LineMb = 8.0,
    tokenizer: Tokenizer = None,
    template: TemplateName = "tokenizer-or-plain",
    as_json: AsJson = False,
) -> None:
    """Count rows, labels and harm, and measure lengths.

    With --tokenizer lengths are in tokens.
    """
    from pddpo_ray.data.checks.inspection import inspect
    from pddpo_ray.data.convert import rendering

    renderer = rendering(template, tokenizer, None)
    statistics = renderer.statistics()
    settings = _settings(files, format_, means, keep, False, max_line_mb, renderer, column, ignore)
    inspection = inspect(files, settings, watch=statistics.add)
    numbers = {"command": "stats", **_numbers(inspection, renderer), "statistics": statistics.summary()}
    _report(numbers, inspection, 0, as_json)


@app.command()
def measurements(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    out: Annotated[Path, typer.Option(help="File to write: .jsonl, .jsonl.gz, .parquet or .arrow.", metavar="FILE")],
    journal: Annotated[str | None, typer.Option(help="Database URL, where the recipe names one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write all that was measured of a run's answers.

    Under its limits, by people and machines: a row a measurement.
    """
    from pddpo_ray.data.files.sinks import Sink
    from pddpo_ray.data.runs import measurements_of_run

    with Sink(out, "measurements") as sink:
        for row in measurements_of_run(run, journal):
            sink.write(row)
    written = {"command": "measurements", "out": str(out), "written": sink.rows}
    if as_json:
        print_json(written)
    else:
        typer.echo(f"{sink.rows} measurements: {out}")
    if not sink.rows:
        raise RunError(f"nothing was measured in {run} yet")


# --- from options to settings ----------------------------------------------------------------------------------------


def _settings(
    files: list[str], form: str | None, means: Means, keep: list[str] | None, strict: bool, line_mb: float,
    renderer: Rendering, column: list[str] | None, ignore: list[str] | None,
) -> Settings:  # fmt: skip
    from pddpo_ray.data.checks.inspection import Settings
    from pddpo_ray.data.checks.problems import KEEPABLE, Limits
    from pddpo_ray.data.files.sources import is_run

    unknown = sorted(set(keep or ()) - set(KEEPABLE))
    if unknown:
        raise UserError(f"--keep {unknown[0]} is unknown: it takes {', '.join(KEEPABLE)}")
    # In a run one pair may be labelled several times, and labels of people and worlds are random: both say something.
    of_runs = KEEPABLE if keep is None and all(is_run(name) for name in files) else ()
    return Settings(
        format=form,
        means=means.value,
        limits=Limits(line_bytes=int(line_mb * (1 << 20))),
        keep=frozenset(keep or of_runs),
        strict=strict,
        checks=renderer.checks,
        columns=columns_of(column or []),
        ignore=frozenset(ignore or ()),
    )


def columns_of(texts: list[str]) -> dict[str, str]:
    columns = {}
    for text in texts:
        name, sign, field = text.partition("=")
        if not (name and sign and field) or name in columns:
            raise UserError(f"--column {text}: write NAME=THEIRS, each name once, e.g. --column prompt=question")
        columns[name] = field
    return columns


# --- what is printed -------------------------------------------------------------------------------------------------


def _numbers(inspection: Inspection, renderer: Rendering) -> dict[str, Any]:
    return {
        "files": [vars(count) for count in inspection.files],
        "rows": inspection.rows,
        "good": inspection.good,
        "bad": dict(inspection.kinds.most_common()),
        "kept": dict(inspection.tolerated.most_common()),
        "unread": dict(inspection.unread.most_common()),
        "distinct_prompts": inspection.distinct_prompts,
        "warnings": renderer.warnings(),
        "problems": [vars(problem) for problem in inspection.problems],
    }


def _report(numbers: dict[str, Any], inspection: Inspection, show: int, as_json: bool) -> None:
    if as_json:
        print_json(numbers)
        return
    for problem in inspection.problems[:show]:
        typer.echo(str(problem))
    hidden = sum(inspection.kinds.values()) - min(show, len(inspection.problems))
    if show and hidden:
        typer.echo(f"... and {hidden:,} more (--show, --quarantine, --json)")
    rows = [
        (count.file, count.format or "-", f"{count.rows:,} rows", f"{count.bad:,} bad") for count in inspection.files
    ]
    print_columns(rows)
    if "statistics" in numbers:
        _print_statistics(numbers["statistics"])
    if numbers["unread"]:
        typer.echo("fields not used: " + ", ".join(f"{name} ({n:,} rows)" for name, n in numbers["unread"].items()))
    for warning in numbers["warnings"]:
        typer.echo(f"note: {warning}")
    typer.echo(_summary(numbers))


def _summary(numbers: dict[str, Any]) -> str:
    parts = [f"{numbers['good']:,} of {numbers['rows']:,} rows are good"]
    for name, words in (("bad", "set aside"), ("kept", "kept although")):
        if numbers[name]:
            parts.append(f"{words}: " + ", ".join(f"{times:,} {kind}" for kind, times in numbers[name].items()))
    if "out" in numbers:
        parts.append(f"{numbers['written']:,} written to {numbers['out']}")
        if numbers["unlabelled"]:
            parts.append(f"{numbers['unlabelled']:,} have no label for {numbers['to']}")
    if numbers.get("quarantine"):
        parts.append(f"quarantine: {numbers['quarantine']}")
    return "; ".join(parts)


def _print_statistics(statistics: dict[str, Any]) -> None:
    lines: list[tuple[str, str]] = []
    for name, value in statistics.items():
        words = name.replace("_", " ")
        if isinstance(value, dict) and "at_most" in value:
            lines.append((words, ", ".join(f"{key} {_number(value[key])}" for key in value if key != "at_most")))
            total, most = value["count"], max(value["at_most"].values())
            for bound, times in value["at_most"].items():
                lines.append((f"  to {int(bound):,}", f"{times / total:4.0%} {'█' * round(30 * times / most)}"))
        elif isinstance(value, dict):
            lines += [(f"{words}: {key}", _values_text(below)) for key, below in value.items()]
        elif value is not None:
            lines.append((words, _number(value)))
    print_columns(lines)


def _values_text(value: Any) -> str:
    if not isinstance(value, dict):
        return _number(value)
    return ", ".join(f"{key.replace('_', ' ')} {_number(below)}" for key, below in value.items() if below is not None)


def _number(value: Any) -> str:
    return f"{value:,.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
