"""`pddpo certify` and `pddpo certificate verify`: is the limit kept, at a stated confidence?

Exit codes: 0 certified, 5 undecided, 6 rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pddpo_ray.cli.output import print_json, spoken
from pddpo_ray.errors import UserError

if TYPE_CHECKING:
    from pddpo_ray.certificates.document import Json
    from pddpo_ray.certificates.ledger import Entry

EXIT = {"certified": 0, "undecided": 5, "rejected": 6}

app = typer.Typer(no_args_is_help=True, help="Verify a certificate that a run has given.")


def certify(
    run: Annotated[
        Path,
        typer.Argument(
            help="Folder of a run with finished rounds; with --limits, one in which another trainer saved models.",
            metavar="RUN",
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            help="round-K, last, mixture, or tail-K (rounds K to the last); with --limits: final, checkpoint-N or last."
        ),
    ] = "last",
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", help="Another bound than the recipe's or the file's.", metavar="NAME=VALUE"),
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=1, help="Draws for this policy, a limit; without it, certificate.draws.")
    ] = None,
    limits: Annotated[
        Path | None, typer.Option("--limits", help="YAML with `limits:`, for a model of another trainer.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="JSON lines with `prompt`, for a model of another trainer.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.01, help="With --limits: how the model answers; 1 without it.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="With --limits: tokens of an answer at most; 512 without it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Test a policy's limits on fresh answers.

    Draws prompts, answers and labels until its limits are certified, or one is shown to be broken.
    """
    from pddpo_ray.certificates.document import sentences
    from pddpo_ray.cli.runs.next_steps import show_steps
    from pddpo_ray.cli.runs.recipe_of_run import find_run

    folder, bounds = run.expanduser().absolute(), _limits(limit or [])
    with spoken(partial(typer.echo, err=True)):
        if limits is not None and prompts is not None:
            from pddpo_ray.integrations.certifying import MAX_TOKENS, Question, certify_saved

            question = Question(limits.expanduser(), prompts.expanduser(), temperature or 1.0, max_tokens or MAX_TOKENS)
            entry, document = certify_saved(folder, question, policy, budget=budget, bounds=bounds)
        elif any(option is not None for option in (limits, prompts, temperature, max_tokens)):
            raise UserError("a model of another trainer is certified with both --limits FILE and --prompts FILE")
        else:
            entry, document = _of_run(folder, policy, bounds, budget)
    _show(document, sentences(document), as_json=as_json)
    if limits is None and not as_json:
        show_steps(find_run(folder, None))
    raise typer.Exit(EXIT[entry.state])


@app.command("verify")
def verify(
    file: Annotated[Path, typer.Argument(help="A certificate.json.", metavar="FILE")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Recompute a certificate from its draws.

    And from the labels in the run's journal if it is in the same folder.
    """
    from pddpo_ray.certificates.document import sentences, verified

    certificate = verified(file.expanduser().absolute())
    _show(certificate, [*sentences(certificate), certificate["verified"]], as_json=as_json)


def _of_run(folder: Path, policy: str, bounds: dict[str, float], budget: int | None) -> tuple[Entry, Json]:
    from pddpo_ray.certificates.release import certify_and_release
    from pddpo_ray.cli.runs.recipe_of_run import find_run
    from pddpo_ray.integrations.certifying import is_ledger
    from pddpo_ray.integrations.saved_policies import saved_names
    from pddpo_ray.storage.whole_files import JOURNAL

    has_journal = (folder / JOURNAL).is_file()
    if (has_journal and is_ledger(folder)) or (not has_journal and saved_names(folder)):
        raise UserError(f"{folder} holds models of another trainer: add --limits FILE and --prompts FILE")
    stored = find_run(folder, None)
    budget = budget or stored.config.certificate.draws
    return certify_and_release(stored.config, stored.folder, policy, bounds, budget)


def _limits(texts: Sequence[str]) -> dict[str, float]:
    limits = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            limits[name] = float(number.rstrip(" %")) / (100.0 if number.endswith("%") else 1.0)
        except ValueError:
            raise UserError(f"--limit {text}: write NAME=VALUE, e.g. --limit cost=0.1") from None
    return limits


def _show(certificate: Json, lines: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json(certificate)
    else:
        for line in lines:
            typer.echo(line)
