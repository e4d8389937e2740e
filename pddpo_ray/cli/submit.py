"""`pddpo submit`: a recipe as a job on a running Ray cluster."""

from __future__ import annotations

import tempfile
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from deploy import submit as jobs
from pddpo_ray.cli.output import print_json
from pddpo_ray.config import Config, load


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
        about = {"entrypoint": command, "files": len(package.sizes), "bytes": package.size, "env_vars": variables}
        if dry_run:
            _say(about, as_json)
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
    """The recipe for a cluster: as Ray actors, and without looking here for files that are there."""
    config = load(recipe, overrides, check_files=False)
    if config.cluster.mode == "ray":
        return config
    return load(recipe, [*overrides, "cluster.mode=ray"], check_files=False)


def _say(about: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(about)
        return
    for key, value in about.items():
        typer.echo(f"{key}: {value}")
