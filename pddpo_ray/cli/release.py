"""`pddpo release` and `pddpo rollback`: which round is released, changed by hand. A served endpoint follows."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.cli.recipe_of_run import find_run, store_of
from pddpo_ray.errors import UserError

if TYPE_CHECKING:
    from pddpo_ray.serving.releases import Releases

RUN = Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")]
REASON = Annotated[str, typer.Option(help="Why; kept in the history.")]
DATABASE = Annotated[str | None, typer.Option(help="Database URL, where the recipe names one.")]
JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def release(
    run: RUN,
    round_: Annotated[
        int | None, typer.Argument(help="The round; without it, show the history.", metavar="[ROUND]")
    ] = None,
    reason: REASON = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also a policy without a certificate: it is marked as uncertified.")
    ] = False,
    journal: DATABASE = None,
    as_json: JSON = False,
) -> None:
    """Release a round by hand, or show what was released and refused so far."""
    with _releases(run, journal, to_read=round_ is None) as releases:
        if round_ is not None:
            releases.release(round_, by=_who(), reason=reason, force=force)
        _show(releases, as_json)


def rollback(run: RUN, reason: REASON = "", journal: DATABASE = None, as_json: JSON = False) -> None:
    """Take the released round back; the one released before it serves again."""
    with _releases(run, journal) as releases:
        releases.rollback(by=_who(), reason=reason)
        _show(releases, as_json)


@contextmanager
def _releases(run: Path, journal: str | None, *, to_read: bool = False) -> Iterator[Releases]:
    from pddpo_ray.serving.releases import Releases

    with store_of(find_run(run, journal), to_read=to_read) as store:
        yield Releases(store)


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise UserError("nobody knows who you are: set the environment variable USER") from None


def _show(releases: Releases, as_json: bool) -> None:
    now, history = releases.now(), releases.history()
    if as_json:
        lines = [{**line.__dict__} for line in history]
        print_json({"released": now.current, "states": dict(now.states), "history": lines})
        return
    if history:
        print_columns(
            (line.action, "-" if line.round is None else f"round {line.round}", line.by, line.reason)
            for line in history
        )
    typer.echo("released: " + ("nothing" if now.current is None else f"round {now.current}"))
