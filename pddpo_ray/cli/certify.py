"""`pddpo certify` and `pddpo certificate verify`: is the limit kept, at a stated confidence?

Exit codes: 0 certified, 5 undecided, 6 rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pddpo_ray.cli.output import print_json
from pddpo_ray.errors import UserError

if TYPE_CHECKING:
    from pddpo_ray.loop.certificate_file import Json

EXIT = {"certified": 0, "undecided": 5, "rejected": 6}

app = typer.Typer(no_args_is_help=True, help="Certificates that a run has given.")


def certify(
    run: Annotated[Path, typer.Argument(help="Folder of a run with finished rounds.", metavar="RUN")],
    policy: Annotated[str, typer.Option(help="round-K, last, mixture, or tail-K (rounds K to the last).")] = "last",
    limit: Annotated[
        list[str] | None, typer.Option("--limit", help="Another bound than the recipe's.", metavar="NAME=VALUE")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=1, help="Draws for this policy, a limit; without it, certificate.draws.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Draw prompts, answers and labels for a policy until its limits are certified, or one is shown to be broken."""
    from pddpo_ray.cli.recipe_of_run import find_run
    from pddpo_ray.loop.certificate_file import sentences
    from pddpo_ray.loop.releasing import certify_and_release

    stored = find_run(run, None)
    draws = budget or stored.config.certificate.draws
    entry, written = certify_and_release(stored.config, stored.folder, policy, _limits(limit or []), draws)
    _show(written, sentences(written), as_json=as_json)
    raise typer.Exit(EXIT[entry.state])


@app.command("verify")
def verify(
    file: Annotated[Path, typer.Argument(help="A certificate.json.", metavar="FILE")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compute a certificate again from its draws, and from the labels in the run's journal where it lies beside."""
    from pddpo_ray.loop.certificate_file import sentences, verified

    checked = verified(file.expanduser().absolute())
    _show(checked, [*sentences(checked), checked["verified"]], as_json=as_json)


def _limits(given: Sequence[str]) -> dict[str, float]:
    limits = {}
    for text in given:
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
