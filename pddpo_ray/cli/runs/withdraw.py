"""`pddpo withdraw`: what a user of the endpoint sent is taken out of everything that the run keeps of it."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pddpo_ray.cli.output import print_json
from pddpo_ray.cli.runs.recipe_of_run import find_run, store_of


def withdraw(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    reply: Annotated[str, typer.Option(help="The prompt of this reply, by the reply's id.", metavar="ID")] = "",
    key: Annotated[str, typer.Option(help="Everything that came with this key.", metavar="NAME")] = "",
    user: Annotated[str, typer.Option(help="With --key: what this user of its application sent.")] = "",
    journal: Annotated[str | None, typer.Option(help="Database URL, where the recipe names one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Take back prompts that users gave to training.

    With all answers, labels and pairs that came of them.
    """
    from pddpo_ray.driver.withdrawal import take_back

    source = find_run(run, journal)
    with store_of(source) as store:
        counts = take_back(store, source.folder, by=getpass.getuser(), reply=reply, key=key, user=user)
    if as_json:
        print_json(asdict(counts))
        return
    typer.echo(
        f"withdrawn: {counts.prompts} prompts with {counts.replies} served answers, {counts.samples} answers of rounds,"
        f" {counts.pairs} pairs and {counts.questions} questions to people"
    )
    if counts.prompts:
        typer.echo("weights that were trained with them stay as they are; backups and copies of the folder do too")
