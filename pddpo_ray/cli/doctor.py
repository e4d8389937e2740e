"""`pddpo doctor`: whether this environment can do a run, or a model every step of one; and if not, what to do."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from pddpo_ray.cli.output import print_json
from pddpo_ray.cli.runs.train import quieten_libraries


def doctor(
    deep: Annotated[
        bool, typer.Option("--deep", help="Import the engines as well (half a minute); finds broken installations.")
    ] = False,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME_OR_FOLDER", help="Try every step of a run with this model.")
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option("--engine", help="With --model: transformers or vllm; all that are installed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check what this machine can run.

    Versions, wrong pairs, engines, GPUs, ports, disk, memory and Ray; exit 1 if something must be repaired.

    With --model: load, render, deliver, train a step, merge, export and reload it; exit 2 if a step fails.
    """
    if model is not None:
        raise typer.Exit(0 if _examine_model(model, engine or [], as_json=as_json) else 2)
    from pddpo_ray.plan.doctor import Finding, examine

    findings: list[Finding] = examine(deep=deep)
    failed = any(finding.status == "fail" for finding in findings)
    if as_json:
        print_json({"ok": not failed, "findings": [finding.as_dict() for finding in findings]})
    else:
        for finding in findings:
            typer.echo(f"{finding.status:5}  {finding.check:18}  {finding.seen}")
            if finding.advice:
                typer.echo(f"{'':27}-> {finding.advice}")
    raise typer.Exit(1 if failed else 0)


def _examine_model(model: str, engines: list[str], *, as_json: bool) -> bool:
    """Runs every step of a training run once for the model; one line per step as it ends."""
    from pddpo_ray.backends.machine import inspect_machine
    from pddpo_ray.errors import UserError

    quieten_libraries(inspect_machine())
    from pddpo_ray.plan.conformance import EngineName, Step, steps_of

    engine_names: tuple[EngineName, ...] = ("transformers", "vllm")
    if unknown := set(engines) - set(engine_names):
        raise UserError(f"--engine {min(unknown)}: there are {' and '.join(engine_names)}")
    names = [name for name in engine_names if (name in engines if engines else find_spec(name) is not None)]
    steps: list[Step] = []
    for step in steps_of(model, names):
        steps.append(step)
        if not as_json:
            typer.echo(f"{'ok' if step.ok else 'failed':6}  {step.step:23}  {step.seen}")
    if as_json:
        print_json({"ok": steps[-1].ok, "model": model, "steps": [step.as_dict() for step in steps]})
    return steps[-1].ok
