"""`pddpo simulate-annotators`: simulated people, for demos, load and fault tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy.annotation.command import ADMIN_TOKEN
from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.cli.runs.recipe_of_run import find_run
from pddpo_ray.errors import UserError


def simulate_annotators(
    run: Annotated[Path, typer.Option(help="Run folder; its world tells the truth.", metavar="DIR")],
    url: Annotated[str, typer.Option(help="Address of `pddpo annotate`.")] = "http://127.0.0.1:8790",
    people: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    error: Annotated[float, typer.Option(min=0, max=1, help="Chance to answer the opposite of what was seen.")] = 0.05,
    bias: Annotated[float, typer.Option(help="Added to every cost by each person.")] = 0.0,
    lazy: Annotated[int, typer.Option(min=0, help="How many of them answer without looking.")] = 0,
    abstain: Annotated[float, typer.Option(min=0, max=1, help="Chance to say that they cannot tell.")] = 0.0,
    dropout: Annotated[float, typer.Option(min=0, max=1, help="Chance per question to leave for good.")] = 0.0,
    seconds: Annotated[float, typer.Option(min=0, help="Mean time per answer.")] = 0.0,
    idle_s: Annotated[float, typer.Option(min=0, help="End after so long without questions; 0: never.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    token: Annotated[str | None, typer.Option(help="Admin token; default: from the run folder.")] = None,
    journal: Annotated[str | None, typer.Option(help="Database URL, where the recipe names one.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the run to begin and for the page to answer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Answer a run's questions with simulated people.

    Through the real API, from its world's truth, with mistakes.
    """
    run = run.expanduser().absolute()
    if lazy > people:
        raise UserError(f"--lazy {lazy} is more than --people {people}: give at most {people}")
    config = find_run(run, journal, wait=wait).config
    from pddpo_lab.simulated_people import Manner, enlist, simulate, wait_for_service
    from pddpo_ray.worlds.truth_by_text import truth_of

    if wait:
        wait_for_service(url)
    admin = token or _token_of(run)
    truth = truth_of(config)
    manner = Manner(error=error, bias=bias, abstain=abstain, dropout=dropout, seconds=seconds)
    careless = Manner(error=error, bias=bias, lazy=1.0, abstain=abstain, dropout=dropout, seconds=seconds)
    manners = [careless] * lazy + [manner] * (people - lazy)
    accounts = enlist(url, admin, people, f"simulated-{seed}")
    tallies = simulate(url, accounts, manners, truth.scores, seed=seed, idle_s=idle_s or None)
    latencies = sorted(second for tally in tallies for second in tally.seconds)
    result = {
        "people": people,
        "answers": sum(len(tally.acknowledged) for tally in tallies),
        "surplus": sum(tally.surplus for tally in tallies),
        "retries": sum(tally.retries for tally in tallies),
        "left": sum(tally.left for tally in tallies),
        "latency_median_s": latencies[len(latencies) // 2] if latencies else None,
        "latency_95_s": latencies[int(0.95 * len(latencies))] if latencies else None,
    }
    if as_json:
        print_json(result)
    else:
        print_columns(
            [(name, f"{value:.4g}" if isinstance(value, float) else str(value)) for name, value in result.items()]
        )


def _token_of(run: Path) -> str:
    file = run / ADMIN_TOKEN
    if not file.is_file():
        raise UserError(f"there is no {file}: start `pddpo annotate --run {run}` first, or give --token")
    return file.read_text().strip()
