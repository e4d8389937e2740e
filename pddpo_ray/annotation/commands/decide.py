"""`pddpo annotations decide`: what becomes of a batch whose labels do not come."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pddpo_ray.annotation.commands.found_queue import queue_of
from pddpo_ray.cli.output import milliseconds, print_columns, print_json
from pddpo_ray.errors import UserError

if TYPE_CHECKING:
    from pddpo_ray.annotation.queue.batch_rows import RoundStatus
    from pddpo_ray.annotation.review.decisions import Decisions

EXTEND = ", or none for no deadline"


def decide(
    run: Annotated[Path, typer.Option(help="Run folder.", metavar="DIR")],
    batch: Annotated[
        str | None, typer.Option(help="The batch, e.g. 2/safety; may be left out where one is undecided.")
    ] = None,
    extend: Annotated[
        str | None, typer.Option(help="New deadline from now, e.g. 30min, 2h, 3d; none removes it.", metavar="TIME")
    ] = None,
    ask_again: Annotated[bool, typer.Option("--ask-again", help="Ask further people the blocked questions.")] = False,
    drop_blocked: Annotated[
        bool, typer.Option("--drop-blocked", help="Continue without the labels of blocked questions.")
    ] = False,
    accept: Annotated[bool, typer.Option("--accept", help="Continue with the labels that are there.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the run here.")] = False,
    reopen: Annotated[bool, typer.Option("--reopen", help="Ask the questions of a stopped batch again.")] = False,
    by: Annotated[str | None, typer.Option(help="Who decides; default: the user of this machine.")] = None,
    reason: Annotated[str, typer.Option(help="Why; kept in the audit log.")] = "",
    journal: Annotated[str | None, typer.Option("--journal", help="Database URL, where the recipe names one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Decide about a batch of questions.

    Without a decision, says what each open batch still needs and what is possible.
    """
    flags = {"ask-again": ask_again, "drop-blocked": drop_blocked, "accept": accept, "stop": stop, "reopen": reopen}
    choices = [name for name, value in flags.items() if value] + (["extend"] if extend else [])
    if len(choices) > 1:
        raise UserError(f"one decision at a time: --{' or --'.join(choices)}")
    from pddpo_ray.annotation.queue.batches import Rounds
    from pddpo_ray.annotation.queue.queue_rules import QueueError
    from pddpo_ray.annotation.review.decisions import Decision, Decisions

    with queue_of(run, journal, to_read=not choices) as (store, rules):
        rounds, decisions = Rounds(store, rules), Decisions(store, rules)
        undecided = [status for status in rounds.all() if status.state != "frozen" and batch in (None, status.name)]
        if not choices:
            _show(decisions, undecided, as_json)
            return
        target = _one_of(undecided, batch)
        deadline = None if extend in (None, "none") else store.clock() + milliseconds("--extend", str(extend), EXTEND)
        author = by or f"{getpass.getuser()} at the command line"
        try:
            status = decisions.decide(target.id, Decision(choices[0]), by=author, reason=reason, deadline_ms=deadline)
        except QueueError as error:
            raise UserError(str(error)) from error
        _show(decisions, [status], as_json)


def _one_of(undecided: list[RoundStatus], batch: str | None) -> RoundStatus:
    if len(undecided) == 1:
        return undecided[0]
    if not undecided:
        raise UserError(f"no batch{'' if batch is None else f' {batch}'} of this run is open or stopped")
    raise UserError(f"--batch: name one of {', '.join(status.name for status in undecided)}")


def _show(decisions: Decisions, statuses: list[RoundStatus], as_json: bool) -> None:
    batches = [
        {"batch": status.name, "missing": status.missing, "wanted": status.wanted} | decisions.about(status)
        for status in statuses
    ]
    if as_json:
        print_json({"batches": batches})
    elif not batches:
        typer.echo("no batch of this run waits for a decision")
    else:
        print_columns([_row(batch) for batch in batches])


def _row(batch: dict[str, Any]) -> tuple[str, ...]:
    nothing = "nothing, the run continues" if batch["of_run"] else "nothing"
    options = ", ".join(f"--{name}" for name in batch["choices"]) or nothing
    outlook = batch["outlook"]
    shares = "" if outlook is None else f"unsafe {_percent(outlook['all_safe'])} to {_percent(outlook['all_unsafe'])}"
    lacking = f"{batch['missing']} of {batch['wanted']} labels missing"
    return batch["batch"], batch["situation"], lacking, shares, f"possible: {options}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
