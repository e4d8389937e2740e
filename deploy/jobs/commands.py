"""`pddpo submit`, `stop` and `logs`: a run as a job of a Ray cluster; of a run on this machine the last two too."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from deploy.jobs import submit as jobs
from pddpo_ray.cli.output import print_json
from pddpo_ray.cli.runs.recipe_of_run import find_run, store_of
from pddpo_ray.cli.runs.run_log import LOG
from pddpo_ray.config import Config, load
from pddpo_ray.errors import RunError, UserError

LOOK_S = 0.2

Address = Annotated[
    str | None,
    typer.Option(
        help="The run is a job of the cluster with this dashboard.", metavar="URL", envvar="RAY_API_SERVER_ADDRESS"
    ),
]
Journal = Annotated[str | None, typer.Option("--journal", help="Database URL, where the recipe names one.")]


def submit(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe (`pddpo recipes`) or the path of a recipe file.")],
    run: Annotated[str, typer.Option(help="Run folder: an absolute path that every node sees.", metavar="DIR")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, e.g. rounds=8 trainer.workers=4")
    ] = None,
    address: Annotated[
        str, typer.Option(help="The cluster's dashboard.", metavar="URL", envvar="RAY_API_SERVER_ADDRESS")
    ] = "http://127.0.0.1:8265",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the run folder.")] = False,
    go_on: Annotated[
        bool, typer.Option("--go-on", help="Begin the run, or continue it if the run folder holds one.")
    ] = False,
    working_dir: Annotated[
        Path, typer.Option(help="Code that travels with the job; data and runs are left out.", metavar="DIR")
    ] = Path(),
    secret: Annotated[
        list[str] | None, typer.Option(help="Name of a secret that the nodes must have; may be repeated.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="Environment of the job, readable by all; may be repeated.", metavar="K=V")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Follow the log to the end; the exit code is that of the run.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would travel; submit nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; the log goes to stderr.")] = False,
) -> None:
    """Submit a recipe to a Ray cluster and follow it."""
    config = on_ray(recipe, overrides or [])
    folder = PurePosixPath(run)
    command, variables = jobs.entrypoint(folder, resume=resume, go_on=go_on), jobs.environment(env or [], secret or [])
    with tempfile.TemporaryDirectory(prefix="pddpo-submit-") as staging:
        package = jobs.build_package(config, working_dir, Path(staging))
        summary = {"entrypoint": command, "files": len(package.sizes), "bytes": package.size, "env_vars": variables}
        if dry_run:
            _show(summary, as_json)
            return
        client = jobs.connect(address)
        job = jobs.submit(
            client, package, run=folder, resume=resume, go_on=go_on, variables=env or [], secrets=secret or []
        )
    typer.echo(f"{'attached to' if job.attached else 'submitted'} {job.id}: {job.entrypoint}", err=as_json)
    code = jobs.follow(client, job.id, lambda text: typer.echo(text, nl=False, err=as_json)) if wait else 0
    if as_json:
        print_json({"job": job.id, "attached": job.attached, "run": run, "exit_code": code if wait else None})
    raise typer.Exit(code)


def on_ray(recipe: str, overrides: list[str]) -> Config:
    """The recipe with `cluster.mode=ray`. Its files are on the cluster and not checked here."""
    config = load(recipe, overrides, check_files=False)
    if config.cluster.mode == "ray":
        return config
    return load(recipe, [*overrides, "cluster.mode=ray"], check_files=False)


def _show(summary: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(summary)
        return
    for key, value in summary.items():
        typer.echo(f"{key}: {value}")


def stop(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    journal: Journal = None,
    address: Address = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds that the run has to end.", metavar="SECONDS")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell a run to stop and wait until it has ended.

    `pddpo train --run RUN --resume` continues it.
    """
    stopped = stop_here(run, journal, wait) if address is None else stop_job(run, address, wait)
    if as_json:
        print_json({"run": str(run), "stopped": stopped})
    else:
        typer.echo(f"stopped: {stopped}; --resume continues it" if stopped else f"no process drives the run in {run}")


def stop_here(run: Path, journal: str | None, wait_s: float) -> str | None:
    """Ends the driver of a run on this machine. Returns who it was. Raises UserError if it is elsewhere."""
    from pddpo_ray.journal.lock import driver_of

    stored = find_run(run, journal)
    with store_of(stored, to_read=True) as store:
        driver = driver_of(store.engine, store.run)
    if driver is None:
        return None
    if not driver.is_here:
        raise UserError(
            f"the run is driven by process {driver.pid} on {driver.host}: call this command there, or give the"
            " cluster's dashboard with --address"
        )
    os.kill(driver.pid, signal.SIGTERM)
    deadline = time.monotonic() + wait_s
    while driver.lives:
        if time.monotonic() > deadline:
            raise RunError(
                f"process {driver.pid} was told to stop and did not end within {wait_s:g} s: `kill -9 {driver.pid}`"
                " loses no finished phase"
            )
        time.sleep(LOOK_S)
    return f"process {driver.pid}"


def stop_job(run: Path, address: str, wait_s: float) -> str | None:
    """Ends the job of a run on a cluster. Returns its name."""
    client = jobs.connect(address)
    job = jobs.going(client, PurePosixPath(run))
    if job is None:
        return None
    client.stop_job(job)
    if not jobs.ended_within(client, job, wait_s):
        raise RunError(
            f"job {job} was told to stop and did not end within {wait_s:g} s: look at `ray job status {job}`"
        )
    return f"job {job}"


def logs(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    address: Address = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep watching until the run ends (Ctrl-C does not stop the run).")
    ] = False,
    journal: Journal = None,
) -> None:
    """Print what a run has said."""
    if address is not None:
        show_job(run, address, follow=follow)
    else:
        show_file(run, journal, follow=follow)


def show_job(run: Path, address: str, *, follow: bool) -> None:
    """The log of the newest job of a run. Raises UserError if there is none."""
    client = jobs.connect(address)
    names = jobs.jobs_of(client, PurePosixPath(run))
    if not names:
        raise UserError(f"--address {address}: no job of {run} is known there")
    if follow:
        jobs.follow(client, names[-1], lambda text: typer.echo(text, nl=False))
    else:
        typer.echo(client.get_job_logs(names[-1]), nl=False)


def show_file(run: Path, journal: str | None, *, follow: bool) -> None:
    """`train.log` of a run folder; `follow`: until nobody drives the run."""
    from pddpo_ray.journal.lock import driver_of

    stored = find_run(run, journal)
    path = stored.folder / LOG
    if not path.is_file():
        raise UserError(f"{path} does not exist: the run was not started by `pddpo train`, or by an older version")
    with path.open(encoding="utf-8", errors="replace") as log:
        typer.echo(log.read(), nl=False)
        while follow:
            with store_of(stored, to_read=True) as store:
                follow = driver_of(store.engine, store.run) is not None
            typer.echo(log.read(), nl=False)
            time.sleep(LOOK_S if follow else 0)
