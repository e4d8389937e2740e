"""`pddpo annotate`: the annotation page of a run, or of a file of questions, and accounts for the people who use it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.web.listening import BehindProxy, Host, refuse_open_network
from pddpo_ray.cli.output import print_json
from pddpo_ray.cli.runs.recipe_of_run import FoundRun, find_run
from pddpo_ray.errors import UserError
from pddpo_ray.storage.whole_files import write_secret

if TYPE_CHECKING:
    from pddpo_ray.annotation.people.accounts import People
    from pddpo_ray.journal.transactions import Store

ADMIN_TOKEN = "annotation-admin-token"
"""File in the run folder, readable by its owner alone."""


def annotate(
    run: Annotated[
        list[Path] | None, typer.Option(help="Run folder; repeat it for each run that the page serves.", metavar="DIR")
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="Questions without a run: JSON lines, see docs/annotation.md.", metavar="FILE")
    ] = None,
    store_in: Annotated[
        Path | None,
        typer.Option(
            "--store", help="With --questions: folder of the labels; default: one beside FILE.", metavar="DIR"
        ),
    ] = None,
    labels_each: Annotated[
        int | None, typer.Option(min=1, max=1000, help="With --questions: people that label each new one; default 1.")
    ] = None,
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
        typer.Option("--resume-when-ready", help="Resume the parked run whenever its open questions are answered."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --add: print one JSON object.")] = False,
) -> None:
    """Serve the page on which people label.

    For a run, for several, or for a file of questions.
    """
    folders = [folder.expanduser().absolute() for folder in run or ()]
    if len(set(folders)) < len(folders):
        raise UserError("--run names one folder twice: name each run once")
    if (questions is None) == (not folders):
        raise UserError("name what people label: --run DIR, or --questions FILE, and not both")
    refuse_open_network(host, behind_proxy, "tokens")
    if questions is not None:
        if journal is not None or wait or resume_when_ready:
            raise UserError("--journal, --wait and --resume-when-ready are about a run: --questions goes without them")
        source = _QuestionSource(
            questions, store_in or questions.with_name(f"{questions.stem}.annotation"), labels_each or 1
        )
        if add is not None:
            _add_to_questions(source, add, role, as_json)
        else:
            _serve_questions(source, host=host, port=port, behind_proxy=behind_proxy)
        return
    if store_in is not None or labels_each is not None:
        raise UserError("--store and --labels-each are about --questions: a run has a folder and settings of its own")
    found_runs = [find_run(folder, journal, wait=wait) for folder in folders]
    from pddpo_ray.annotation.queue.queue_rules import Rules
    from pddpo_ray.journal.database import open_database
    from pddpo_ray.journal.transactions import Store

    stores = [Store(open_database(found_run.database), found_run.id) for found_run in found_runs]
    if add is not None:
        _add(stores, add, role, as_json)
        return
    address = f"http://{host}:{port}/"
    _say_where(found_runs, stores, address)
    if resume_when_ready:
        from pddpo_ray.annotation.queue.resuming import Resumer

        for found_run, store in zip(found_runs, stores, strict=True):
            Resumer(store.engine, found_run.id, found_run.config, found_run.folder).start()
    # Imported here: the web server takes a second to load, and --add does without it.
    if len(found_runs) == 1:
        from deploy.annotation.app import serve

        serve(
            stores[0].engine,
            found_runs[0].id,
            Rules.of(found_runs[0].config.people),
            host=host,
            port=port,
            behind_proxy=behind_proxy,
        )
        return
    from deploy.annotation.multi_run_app import ServedRun, names_of, serve_several

    served = [
        ServedRun(name, store.engine, found_run.id, Rules.of(found_run.config.people))
        for name, store, found_run in zip(names_of(folders), stores, found_runs, strict=True)
    ]
    serve_several(served, host=host, port=port, behind_proxy=behind_proxy)


@dataclass(frozen=True)
class _QuestionSource:
    """A file of questions, the folder of its labels, and of how many people each new question is asked."""

    file: Path
    folder: Path
    labels_each: int


def _serve_questions(source: _QuestionSource, *, host: str, port: int, behind_proxy: bool) -> None:
    """Adds what is new in the file and serves all questions of the folder."""
    from deploy.annotation.app import serve
    from pddpo_ray.annotation.people.accounts import People
    from pddpo_ray.annotation.queue.question_files import read_questions
    from pddpo_ray.annotation.queue.question_store import RULES, add_questions, begin
    from pddpo_ray.journal.server_lock import sole_server

    rows = read_questions(source.file.expanduser())
    folder = source.folder.expanduser().absolute()
    store, address = begin(folder), f"http://{host}:{port}/"
    with sole_server(store.engine, address):  # a folder that is served is left as it is
        added = add_questions(store, rows, labels_each=source.labels_each)
        token_file = _first_admin(People(store), folder)
    others_text = f", and {added.others} that the file does not have" if added.others else ""
    typer.echo(f"{added.new} new questions, {added.known} asked before{others_text}")
    typer.echo(f"label at {address}   lead's page: /lead   admin token: {token_file}")
    file, store_in = (shlex.quote(str(path)) for path in (source.file, source.folder))
    typer.echo(f"more people: `pddpo annotate --questions {file} --store {store_in} --add HANDLE`")
    typer.echo(f"labels: `pddpo annotations export --run {store_in} --to labels --out labels.jsonl`")
    serve(store.engine, store.run, RULES, host=host, port=port, behind_proxy=behind_proxy)


def _add_to_questions(source: _QuestionSource, handle: str, role: str, as_json: bool) -> None:
    """Makes an account in a folder, new or being served."""
    from pddpo_ray.annotation.queue.question_files import read_questions
    from pddpo_ray.annotation.queue.question_store import begin

    read_questions(source.file.expanduser())
    store = begin(source.folder.expanduser().absolute())
    try:
        _add([store], handle, role, as_json)
    finally:
        store.engine.dispose()


def _say_where(runs: Sequence[FoundRun], stores: Sequence[Store], address: str) -> None:
    """Prints where people label, and makes the first admins."""
    from pddpo_ray.annotation.people.accounts import People

    for run in runs:
        if not run.config.people_each:
            kind = run.config.feedback.kind
            typer.echo(f"note: {run.folder.name} takes its labels from {kind}; nobody will be asked anything")
    token_file = _first_admin(People(stores[0]), runs[0].folder)
    for run, store in zip(runs[1:], stores[1:], strict=True):
        _first_admin_of_all(store, stores[0], token_file, run.folder)
    typer.echo(f"label at {address}   lead's page: /lead   admin token: {token_file}")
    options = " ".join(f"--run {shlex.quote(str(run.folder))}" for run in runs)
    typer.echo(f"more people: `pddpo annotate {options} --add HANDLE`")


def _add(stores: Sequence[Store], handle: str, role: str, as_json: bool) -> None:
    """Makes one account in all runs, with one token."""
    from pddpo_ray.annotation.people.accounts import People, Role
    from pddpo_ray.annotation.people.shared_people import adopt
    from pddpo_ray.annotation.queue.queue_rules import QueueError

    try:
        person, token = People(stores[0]).create(handle, Role(role), by="command line")
    except (ValueError, QueueError) as error:
        raise UserError(f"--add {handle} --role {role}: {error}") from error
    for store in stores[1:]:
        if not adopt(token, stores[0], store) and store.engine.url != stores[0].engine.url:
            typer.echo(f"note: run {store.run} has a {handle} already, who keeps their own token there", err=True)
    if as_json:
        print_json({"id": person.id, "handle": handle, "role": role, "token": token})
    else:
        typer.echo(f"{handle} ({role}) signs in with this token, which is shown only now:\n{token}")


def _first_admin(people: People, run: Path) -> Path:
    """Makes the first admin where there is none; the token goes into a file that only its owner can read."""
    from pddpo_ray.annotation.people.accounts import Role

    file = run / ADMIN_TOKEN
    if not any(person.role is Role.ADMIN for person in people.all()):
        _, token = people.create("admin", Role.ADMIN, by="command line")
        write_secret(file, token + "\n")
    return file


def _first_admin_of_all(store: Store, first: Store, token_file: Path, folder: Path) -> None:
    """Gives a run without an admin the first run's admin, or else one of its own."""
    from pddpo_ray.annotation.people.accounts import People, Role
    from pddpo_ray.annotation.people.shared_people import adopt

    people = People(store)
    if any(person.role is Role.ADMIN for person in people.all()):
        return
    if not (token_file.is_file() and adopt(token_file.read_text().strip(), first, store)):
        _first_admin(people, folder)
