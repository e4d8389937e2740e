"""`pddpo release` and `pddpo rollback`: which round is released, changed by hand. A served endpoint follows."""

from __future__ import annotations

import getpass
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pddpo_ray.cli.output import milliseconds, print_columns, print_json
from pddpo_ray.cli.runs.next_steps import show_steps
from pddpo_ray.cli.runs.recipe_of_run import find_run, store_of
from pddpo_ray.errors import UserError

if TYPE_CHECKING:
    from pddpo_ray.certificates.release_history import Releases

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
    over: Annotated[
        str | None,
        typer.Option(
            help="Release in stages: 1, 5, 25, 50 % of the conversations, all after this time.", metavar="TIME"
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also a policy without a certificate: it is marked as uncertified.")
    ] = False,
    journal: DATABASE = None,
    as_json: JSON = False,
) -> None:
    """Release a round by hand, or show what is released.

    At once or in stages; without a round: what was released so far.
    """
    from pddpo_ray.certificates.staging import HOUR_MS

    with _releases(run, journal, to_read=round_ is None) as releases:
        if round_ is not None:
            hours = None if over is None else milliseconds("--over", over) / HOUR_MS
            releases.release(round_, by=_user_name(), reason=reason, force=force, hours=hours)
        elif over is not None:
            raise UserError("--over says how long a release takes: name its round too, e.g. `pddpo release RUN 7`")
        _show(releases, as_json)
    if round_ is not None and not as_json:
        show_steps(find_run(run, journal))


def rollback(run: RUN, reason: REASON = "", journal: DATABASE = None, as_json: JSON = False) -> None:
    """Take the released round back.

    Or stop a staged release; the round before it serves again.
    """
    with _releases(run, journal) as releases:
        releases.rollback(by=_user_name(), reason=reason)
        _show(releases, as_json)


@contextmanager
def _releases(run: Path, journal: str | None, *, to_read: bool = False) -> Iterator[Releases]:
    from pddpo_ray.certificates.release_history import Releases

    with store_of(find_run(run, journal), to_read=to_read) as store:
        yield Releases(store)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise UserError("your user name is unknown: set the environment variable USER") from None


def _show(releases: Releases, as_json: bool) -> None:
    now, history = releases.now(), releases.history()
    if as_json:
        lines = [{**line.__dict__} for line in history]
        staged = None if now.stage is None else {"round": now.stage.round, "share": now.stage.share(releases.clock())}
        print_json({"released": now.current, "staged": staged, "states": dict(now.states), "history": lines})
        return
    if history:
        print_columns(
            (line.action, "-" if line.round is None else f"round {line.round}", line.by, line.reason)
            for line in history
        )
    if now.stage is not None:
        share, whole = now.stage.share(releases.clock()), time.localtime(now.stage.whole_ms / 1000)
        when = time.strftime("%Y-%m-%d %H:%M", whole)
        typer.echo(f"staged: round {now.stage.round} answers {100 * share:g} % of the conversations, all at {when}")
    typer.echo("released: " + ("nothing" if now.current is None else f"round {now.current}"))
