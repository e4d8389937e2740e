"""`pddpo annotate`: the annotation page of a run, and accounts for the people who use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pddpo_ray.cli.output import print_json
from pddpo_ray.cli.recipe_of_run import find_run, rules_for
from pddpo_ray.errors import UserError
from pddpo_ray.storage.whole_files import write_secret

if TYPE_CHECKING:
    from pddpo_ray.annotation.people import People

LOCAL = ("127.0.0.1", "localhost", "::1")
ADMIN_TOKEN = "annotation-admin-token"
"""File in the run folder, readable by its owner alone."""

Host = Annotated[str, typer.Option(help="Address to listen on.")]
BehindProxy = Annotated[
    bool, typer.Option("--behind-proxy", help="A proxy in front speaks https: needed for other hosts than this.")
]


def annotate(
    run: Annotated[Path, typer.Option(help="Run folder.", metavar="DIR")],
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8790,
    behind_proxy: BehindProxy = False,
    add: Annotated[str | None, typer.Option(help="Make an account, print its token and end.", metavar="HANDLE")] = None,
    role: Annotated[
        str, typer.Option(help="Role of the new account: annotator, lead, admin or service.")
    ] = "annotator",
    journal: Annotated[str | None, typer.Option(help="Database URL, where the recipe names one.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the run to begin.")] = False,
    resume_when_ready: Annotated[
        bool,
        typer.Option("--resume-when-ready", help="Go on with the parked run whenever its open questions are answered."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --add: print one JSON object.")] = False,
) -> None:
    """Serve the page on which people label for a run."""
    run = run.expanduser().absolute()
    refuse_open_network(host, behind_proxy, "tokens")
    stored = find_run(run, journal, wait=wait)
    config = stored.config
    from pddpo_ray.annotation.people import People
    from pddpo_ray.journal.database import open_database
    from pddpo_ray.journal.transactions import Store

    engine = open_database(stored.database)
    people = People(Store(engine, stored.id))
    if add is not None:
        _add(people, add, role, as_json)
        return
    if not config.people_each:
        typer.echo(f"note: this run takes its labels from {config.feedback.kind}; nobody will be asked anything")
    token_file = _first_admin(people, run)
    rules = rules_for(config)
    typer.echo(f"label at http://{host}:{port}/   lead's page: /lead   admin token: {token_file}")
    typer.echo(f"more people: pddpo annotate --run {run} --add HANDLE")
    if resume_when_ready:
        from pddpo_ray.cli.resuming import Resumer

        Resumer(engine, stored.id, config, run).start()
    # Imported here: the web server takes a second to load, and --add does without it.
    from deploy.annotation.app import serve

    serve(engine, stored.id, rules, host=host, port=port, behind_proxy=behind_proxy)


def _add(people: People, handle: str, role: str, as_json: bool) -> None:
    from pddpo_ray.annotation.people import Role
    from pddpo_ray.annotation.queue_rules import QueueError

    try:
        person, token = people.create(handle, Role(role), by="command line")
    except (ValueError, QueueError) as error:
        raise UserError(f"--add {handle} --role {role}: {error}") from error
    if as_json:
        print_json({"id": person.id, "handle": handle, "role": role, "token": token})
    else:
        typer.echo(f"{handle} ({role}) signs in with this token, which is shown only now:\n{token}")


def _first_admin(people: People, run: Path) -> Path:
    """Makes the first admin where there is none; the token goes into a file that only its owner can read."""
    from pddpo_ray.annotation.people import Role

    file = run / ADMIN_TOKEN
    if not any(person.role is Role.ADMIN for person in people.all()):
        _, token = people.create("admin", Role.ADMIN, by="command line")
        write_secret(file, token + "\n")
    return file


def refuse_open_network(host: str, behind_proxy: bool, secrets: str, *, own_https: str = "") -> None:
    """Raises UserError where plain http would carry secrets beyond this machine without a proxy in front.

    own_https: how this server speaks https itself, where it can.
    """
    if host not in LOCAL and not behind_proxy:
        raise UserError(
            f"--host {host} would show {secrets} and texts to the network: put a proxy with https in front and add"
            f" --behind-proxy, {own_https}or stay on 127.0.0.1"
        )
