"""`pddpo train`: run a recipe to its result."""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any, Protocol, TextIO, cast

import typer

from pddpo_ray.backends.machine import Machine, planned_machine
from pddpo_ray.cli.output import print_columns, print_json, spoken
from pddpo_ray.cli.runs.next_steps import labelled, steps_after, with_folder
from pddpo_ray.cli.runs.recipe_of_run import load_of_run
from pddpo_ray.cli.runs.run_log import RunLog, stoppable
from pddpo_ray.config import Config, load, to_yaml
from pddpo_ray.errors import PddpoError, UserError
from pddpo_ray.storage.whole_files import explain_disk


class Runner(Protocol):
    """Runs a recipe to its end: `driver.run.run_recipe` in this process, `actors.launch.run_recipe` on Ray."""

    def __call__(
        self, config: Config, run_dir: Path, *, resume: bool, progress: Callable[[Any], None]
    ) -> dict[str, Any]: ...


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A shipped recipe (`pddpo recipes`) or the path of a recipe file; with --resume the run's own."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings, e.g. rounds=8 limits.cost.at_most=0"),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder; default runs/RECIPE-TIME.", metavar="DIR")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the run folder.")] = False,
    go_on: Annotated[
        bool, typer.Option("--go-on", help="Begin the run, or continue it if the run folder holds one.")
    ] = False,
    new_id: Annotated[
        bool, typer.Option("--new-id", help="With --resume on a copied run folder: make it a run of its own.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved recipe, resources, memory and labels; run nothing.")
    ] = False,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="With --dry-run: plan for N GPUs in place of this machine's.")
    ] = None,
    gpu_memory: Annotated[float, typer.Option(min=1, help="With --gpus: GiB of each.")] = 80.0,
    annotate: Annotated[
        bool, typer.Option("--annotate", help="Serve the annotation page on this machine during the run.")
    ] = False,
    simulate: Annotated[
        int, typer.Option(min=0, max=1000, help="With --annotate: number of simulated people who answer.")
    ] = 0,
    error: Annotated[float, typer.Option(min=0, max=1, help="With --simulate: their chance of a mistake.")] = 0.05,
    annotate_port: Annotated[int, typer.Option(min=1, max=65535, help="With --annotate: the page's port.")] = 8790,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a recipe, round by round.

    Each round trains, samples, labels and moves the multipliers.
    """
    from pddpo_ray.backends.settled import settled
    from pddpo_ray.plan.warnings import demand_possible_sizes

    config, name = recipe_to_run(recipe, overrides or [], run if resume else None, check_scorers=not dry_run)
    demand_possible_sizes(config)
    if gpus is not None and not dry_run:
        raise UserError("--gpus plans for another machine: add --dry-run")
    machine = planned_machine(gpus, gpu_memory)
    config = settled(config, machine)
    if dry_run:
        show_plan(config, machine, as_json=as_json)
        return
    if go_on:
        resume = resume or holds_run(config, run)
    run_dir = run_folder(name, run, resume=resume)
    check_resources(config, machine)
    if not resume:
        for warning in warnings_of(config, machine):
            typer.echo(f"warning: {warning}", err=True)
    quieten_libraries(machine)
    with explain_disk(run_dir):
        if resume:
            look_before_resuming(config, run_dir, new_id=new_id)
        elif new_id:
            raise UserError(
                "--new-id makes a copied run a run of its own: add --resume and the copy's folder with --run"
            )
        typer.echo(f"{run_dir}: {'continues' if resume else 'begins'}", err=True)
        with ExitStack() as stack:
            if annotate or simulate:
                from pddpo_ray.cli.runs.crowd import crowd_beside

                url = stack.enter_context(
                    crowd_beside(config, run_dir, port=annotate_port, people=simulate, error=error)
                )
                typer.echo(f"label at {url}/   lead's page: {url}/lead", err=as_json)
            result = execute(config, run_dir, resume=resume, quiet=as_json)
        page = write_report(config, run_dir)
    if as_json:
        print_json({"run": str(run_dir), **result})
    else:
        show_result(config, result, run_dir, page)


def recipe_to_run(
    recipe: str | None, overrides: list[str], resumed: Path | None, *, check_scorers: bool
) -> tuple[Config, str]:
    """The recipe with its overrides, and its name; without a recipe that of the run in the folder `resumed`."""
    if recipe is not None and ("=" not in recipe or Path(recipe).exists()):
        return load(recipe, overrides, check_scorers=check_scorers), recipe
    if resumed is None:
        raise UserError("name a recipe (`pddpo recipes` lists those that ship); only --resume --run DIR needs none")
    arguments = [recipe, *overrides] if recipe is not None else overrides
    return load_of_run(resumed, arguments), resumed.name


def quieten_libraries(machine: Machine) -> None:
    """Keeps warnings of libraries out of a run's lines; they read these when they are imported."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # says that a CPU has no Triton
    if not machine.gpus:
        # DeepSpeed warns that it found no GPU unless it is told that there is none.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def holds_run(config: Config, run: Path | None) -> bool:
    """Whether --go-on finds a run. Raises UserError without a folder: a new one each time would hold no run."""
    from pddpo_ray.backends.preflight import has_begun

    if run is None:
        raise UserError("--go-on needs the run folder: add --run DIR")
    return has_begun(config, run.expanduser().absolute())


def run_folder(recipe: str, run: Path | None, *, resume: bool) -> Path:
    """Absolute run folder. Refuses to mix a new run into an old one's folder."""
    if run is None:
        if resume:
            raise UserError("--resume needs the folder of the run to continue: add --run DIR")
        run = Path("runs") / f"{Path(recipe).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    run = run.expanduser().absolute()
    if not resume and not os.path.lexists(run):
        demand_makeable(run)
    if run.exists() and not run.is_dir():
        raise UserError(f"--run {run} is a file; name a folder")
    used = run.is_dir() and any(run.iterdir())
    if resume and not used:
        raise UserError(f"--resume: there is no run in {run}; leave --resume out to start one")
    if used and not resume:
        raise UserError(f"--run {run} is not empty; add --resume to continue it, or name another folder")
    return run


def demand_makeable(run: Path) -> None:
    """UserError unless the run folder is there or can be made; folders made to test it are removed."""
    folders: list[Path] = []
    try:
        for folder in reversed([run, *run.parents]):
            if not folder.is_dir():
                folder.mkdir()
                folders.append(folder)
    except OSError as error:
        raise UserError(f"--run {run} cannot be made: {error.strerror}; name another folder") from error
    finally:
        for folder in reversed(folders):
            folder.rmdir()


def look_before_resuming(config: Config, run_dir: Path, *, new_id: bool) -> None:
    """Refuses a run that cannot continue before its folder is touched; `new_id`: a copy becomes its own run."""
    from pddpo_ray.backends.preflight import resumed_run, take_new_identity

    if new_id:
        typer.echo(f"a run of its own: {take_new_identity(config, run_dir)}", err=True)
    else:
        resumed_run(config, run_dir)


def check_resources(config: Config, machine: Machine) -> None:
    """Refuse what this machine can never do before anything is started. A cluster is asked by its launcher."""
    from pddpo_ray.plan.resources import shortage

    problem = shortage(config, machine)
    if problem:
        raise UserError(problem)


def warnings_of(config: Config, machine: Machine) -> list[str]:
    """Where a run would do other than its recipe suggests (`plan.warnings`)."""
    from pddpo_ray.plan.warnings import warnings

    return warnings(config, machine)


def runner(config: Config) -> Runner:
    """The function that runs this recipe: in this process, or as Ray actors."""
    # Imported here: torch and Ray take seconds to load, and --help and --dry-run need neither.
    if config.cluster.mode == "ray":
        from actors import launch

        return launch.run_recipe
    from pddpo_ray.driver import run

    return run.run_recipe


def execute(config: Config, run_dir: Path, *, resume: bool, quiet: bool, plain: bool = False) -> dict[str, Any]:
    """Run the recipe under the eyes of progress display, TensorBoard and log. `quiet` keeps stdout for the result;
    `plain` shows rounds in words that need no explanation; what else the run says is in its log."""
    from rich.console import Console

    from pddpo_ray.report.plain_words import plain_progress
    from pddpo_ray.report.progress import watching

    run_it = runner(config)  # imports Ray, whose handler of SIGTERM `stoppable` is to come after
    consoles = [Console(stderr=quiet)]
    with ExitStack() as stack:
        log = stack.enter_context(closing(RunLog(run_dir)))
        consoles.append(Console(file=cast(TextIO, log), width=200))
        report, recipe = config.report, config.model_dump(mode="json")
        progress = stack.enter_context(
            watching(
                run_dir,
                tensorboard=report.tensorboard,
                console=Console(quiet=True) if plain else consoles[0],
                trackers=report.trackers,
                recipe=recipe,
            )
        )
        log_progress = stack.enter_context(watching(run_dir, tensorboard=False, console=consoles[1]))
        shown = plain_progress(consoles[0]) if plain else None

        def say(line: str) -> None:
            for console in consoles[plain:]:
                console.print(with_folder(line, run_dir), highlight=False, soft_wrap=True)

        stack.enter_context(spoken(say))
        try:
            with stoppable(run_dir) as stop:

                def tell(event: Any) -> None:
                    progress(event)
                    log_progress(event)
                    if shown is not None:
                        shown(event)
                    stop.check()

                return run_it(config, run_dir, resume=resume, progress=tell)
        except PddpoError as error:
            error.args = (with_folder(str(error), run_dir),)
            log.last(f"pddpo: {error}")
            raise


def write_report(config: Config, run_dir: Path) -> Path | None:
    """report.html of the finished run, unless the recipe does without."""
    if not config.report.html:
        return None
    from pddpo_ray.report.build import build_report

    return build_report(run_dir, config.journal)


def show_plan(config: Config, machine: Machine, *, as_json: bool) -> None:
    """The resolved recipe and what it takes. Exit code 2 when the machine can never run it."""
    from pddpo_ray.plan.data_files import file_rows
    from pddpo_ray.plan.printed import make_plan, plan_lines
    from pddpo_ray.plan.resources import shortage

    files = file_rows(config)
    plan, problem = make_plan(config, machine), shortage(config, machine)
    warnings = warnings_of(config, machine)
    if as_json:
        print_json(
            {
                "recipe": config.model_dump(mode="json"),
                "digest": config.digest(),
                "files": [{"file": name, "holds": holds} for name, holds in files],
                "plan": plan,
                "warnings": warnings,
                "short": problem,
            }
        )
    else:
        typer.echo(to_yaml(config))
        if files:
            typer.echo("data files")
            print_columns(files, indent=2)
        for heading, rows in plan_lines(plan):
            typer.echo(heading)
            print_columns(rows, indent=2)
        if warnings:
            typer.echo("warnings")
            for warning in warnings:
                typer.echo(f"  {warning}")
    if problem:
        raise UserError(problem)


def show_result(config: Config, result: Mapping[str, Any], run_dir: Path, page: Path | None) -> None:
    """The outcome in words, what to do next, and the few numbers that say how well the run went."""
    from pddpo_ray.certificates.outcome import Outcome
    from pddpo_ray.report.text import seconds, short

    outcome = Outcome.from_json(result["outcome"])
    typer.echo(outcome.headline)
    for sentence in outcome.certificate[1:] or (outcome.statement,):
        typer.echo(f"  {sentence}")
    for limit in outcome.limits:
        typer.echo(f"  {limit}")
    for key in ("audit", "price", "neighbour"):
        for text in (limit[key]["text"] for limit in result["limits"].values() if limit.get(key)):
            typer.echo(f"  {text}")
    folder = shlex.quote(str(run_dir))
    rows: list[tuple[str, str | None]] = [
        ("run folder", str(run_dir)),
        ("weights", outcome.weights and f"{run_dir}/{outcome.weights}"),
        ("load", outcome.load(run_dir)),
        ("export", outcome.export(folder)),
        ("serve", outcome.serve(folder)),
        ("report", str(page) if page else None),
        *(() if outcome.policy else labelled("next", steps_after(outcome, config, run_dir))),
    ]
    if result["gap_last"] is not None:
        gaps = {name: result[f"gap_{name}"] for name in ("reference", "offline", "mixture", "last")}
        text = ", ".join(f"{name} {short(gap)}" for name, gap in gaps.items() if gap is not None)
        rows.append(("gap", f"{text} (distance to the best policy that keeps the limit)"))
    rows.append(("effort", f"{result['labels_used']:,} labels, {seconds(result['seconds'])}"))
    print_columns((name, text) for name, text in rows if text)
