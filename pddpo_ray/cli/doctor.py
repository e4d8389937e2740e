"""`pddpo doctor`: is this environment fit for a run, and if not, what to do."""

from __future__ import annotations

from typing import Annotated

import typer

from pddpo_ray.cli.output import print_json


def doctor(
    deep: Annotated[
        bool, typer.Option("--deep", help="Import the engines as well (half a minute); finds broken installations.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check versions, wrong pairs, engines, GPUs, ports, disk, memory and Ray; exit 1 if something must be repaired."""
    from pddpo_ray.plan.doctor import Finding, examine

    findings: list[Finding] = examine(deep=deep)
    failed = any(finding.status == "fail" for finding in findings)
    if as_json:
        print_json({"ok": not failed, "findings": [finding.as_dict() for finding in findings]})
    else:
        for finding in findings:
            typer.echo(f"{finding.status:5}  {finding.check:18}  {finding.found}")
            if finding.advice:
                typer.echo(f"{'':27}-> {finding.advice}")
    raise typer.Exit(1 if failed else 0)
