"""`pddpo status RUN`: where a run is and what it waits for, while it lives and after it died."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pddpo_ray import registry
from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.cli.runs.next_steps import labelled, resume_command, steps_after, with_folder
from pddpo_ray.cli.runs.recipe_of_run import FoundRun, find_run, store_of

if TYPE_CHECKING:
    from pddpo_ray.journal.transactions import Store

KINDS = {
    "safety": "safe-or-unsafe labels", "pair": "compared pairs", "better": "better answers", "number": "numbers",
}  # fmt: skip


def status(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    journal: Annotated[str | None, typer.Option("--journal", help="Database URL, where the recipe names one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say how far a run is, and what to do next.

    Which labels are missing, who is needed for them, and how long that may take.
    """
    stored = find_run(run, journal)
    with store_of(stored, to_read=True) as store:
        facts = about(stored, store)
    if as_json:
        print_json(facts)
        return
    rows = [
        ("run", f"{facts['run']} ({facts['state']})"),
        ("rounds", f"{facts['rounds_done']} of {facts['rounds']} done"),
    ]
    rows += [("outcome", facts["outcome"])] if facts["outcome"] else []
    rows += [("missing", f"{count} {KINDS[kind]}") for kind, count in facts["missing"].items()]
    rows += [(batch["batch"], _line(batch)) for batch in facts["batches"]]
    rows += [("needed", with_folder(batch["lacking"], run)) for batch in facts["batches"] if batch["lacking"]]
    rows += [("flag", f"{handle}: {', '.join(names)}") for handle, names in facts["flags"].items()]
    if any(batch["situation"] != "stopped" for batch in facts["batches"]):
        rows.append(("page", facts["page"] or f"not served: `pddpo annotate --run {shlex.quote(str(run))}`"))
    print_columns([*rows, *labelled("next", facts["next"])])


def about(stored: FoundRun, store: Store) -> dict[str, Any]:
    """The status as `--json` prints it."""
    from pddpo_ray.certificates.outcome import outcome_of
    from pddpo_ray.journal.lock import is_driven
    from pddpo_ray.journal.reading import JournalReader
    from pddpo_ray.journal.server_lock import served_at

    config, journal = stored.config, JournalReader(store.engine, store.run)
    rounds_done = journal.next_round - 1
    queue = registry.code_of("labellers", "people").pending(config.people, store)
    batches = queue["batches"]
    driven, finished = is_driven(store.engine, store.run), rounds_done >= stored.config.rounds
    missing: dict[str, int] = {}
    for batch in batches:
        missing[batch["kind"]] = missing.get(batch["kind"], 0) + batch["missing"]
    outcome = None
    if finished:
        outcome = outcome_of(journal, config.typed_limits, stored.folder, policies=config.policies)
    return {
        "run": stored.id,
        "folder": str(stored.folder),
        "state": "running" if driven else "finished" if finished else "waiting for people" if batches else "stopped",
        "rounds_done": rounds_done,
        "rounds": stored.config.rounds,
        "missing": missing,
        "batches": batches,
        "flags": queue["flags"],
        "page": served_at(stored.database),
        "outcome": outcome and outcome.headline,
        "certified": outcome and bool(outcome.certificate),
        "next": steps_after(outcome, config, stored.folder) if outcome else [] if driven else _next(stored, batches),
    }


def _line(batch: dict[str, Any]) -> str:
    pace = f"{batch['labels_per_hour']:.0f} labels an hour"
    left = "unknown" if batch["seconds_left"] is None else _words(batch["seconds_left"])
    deadline = "no deadline" if batch["deadline_s"] is None else f"deadline {_words(batch['deadline_s'])}"
    return (
        f"{batch['missing']} of {batch['wanted']} missing, {batch['out']} in people's hands, {batch['blocked']}"
        f" blocked, {pace}, time to finish {left}, {deadline}, {batch['situation']}"
    )


def _words(seconds: float) -> str:
    if seconds < 0:
        return f"passed {_words(-seconds)} ago"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _next(stored: FoundRun, batches: list[dict[str, Any]]) -> list[str]:
    """What to do where no process drives an unfinished run."""
    resume = f"`{resume_command(stored.folder, stored.config.journal)}`"
    if any(batch["missing"] for batch in batches):
        decide = f"`pddpo annotations decide --run {shlex.quote(str(stored.folder))}`"
        return [f"answer the questions, or {decide} shows what can be decided", f"{resume} continues the run then"]
    return [f"{resume} continues it"]
