"""`pddpo annotations data-of` and `erase`: what is stored about one person, on request."""

from __future__ import annotations

import getpass
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pddpo_ray.annotation.commands.found_queue import queue_of
from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.errors import UserError
from pddpo_ray.storage.whole_files import write_secret

PersonName = Annotated[str, typer.Argument(help="The person's name, as the lead's page shows it.", metavar="NAME")]
Run = Annotated[Path, typer.Option(help="Run folder.", metavar="DIR")]
JournalUrl = Annotated[str | None, typer.Option("--journal", help="Database URL, where the recipe names one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def data_of(
    person: PersonName,
    run: Run,
    out: Annotated[Path, typer.Option(help="File to write (JSON), readable by its owner alone.", metavar="FILE")],
    journal: JournalUrl = None,
) -> None:
    """Write all that is stored about a person to one file."""
    from pddpo_ray.annotation.people.personal_data import PersonalData
    from pddpo_ray.annotation.queue.queue_rules import QueueError

    with queue_of(run, journal, to_read=True) as (store, rules):
        desk = PersonalData(store, rules)
        try:
            content = desk.of(desk.find(person))
        except QueueError as error:
            raise UserError(str(error)) from error
    write_secret(out, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    print_columns([("answers", str(len(content["answers"]))), ("file", str(out))])


def erase(
    person: PersonName,
    run: Run,
    reason: Annotated[str, typer.Option(help="Why; kept in the audit log. Do not name the person in it.")],
    by: Annotated[str | None, typer.Option(help="Who erases; default: the user of this machine.")] = None,
    journal: JournalUrl = None,
    as_json: AsJson = False,
) -> None:
    """Erase what names a person.

    Their labels stay under the pseudonym and still count.
    """
    from pddpo_ray.annotation.people.personal_data import PersonalData
    from pddpo_ray.annotation.queue.queue_rules import QueueError

    with queue_of(run, journal) as (store, rules):
        desk = PersonalData(store, rules)
        try:
            done = desk.erase(desk.find(person), by=by or f"{getpass.getuser()} at the command line", reason=reason)
        except QueueError as error:
            raise UserError(str(error)) from error
    if as_json:
        print_json(asdict(done))
        return
    print_columns([
        ("now called", done.name), ("answers that stay", str(done.answers)), ("comments erased", str(done.notes)),
        ("log entries emptied", str(done.events)),
    ])  # fmt: skip
    if done.mentions:
        numbers = ", ".join(str(seq) for seq in done.mentions)
        typer.echo(f"note: reasons in the audit log that hold the name stay: entries {numbers}")
