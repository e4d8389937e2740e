"""`pddpo recipes`: what ships with the package."""

from __future__ import annotations

from typing import Annotated

import typer

from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.config import load, recipe_names, to_yaml
from pddpo_ray.registry import KINDS, installed


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this recipe, resolved.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the shipped recipes, or show one in full."""
    if name is not None:
        config = load(name, check_files=False)
        if as_json:
            print_json(config.model_dump(mode="json"))
        else:
            typer.echo(to_yaml(config), nl=False)
        return
    about = {recipe: load(recipe, check_files=False).about for recipe in recipe_names()}
    brought = [
        {"kind": KINDS[kind], "name": own, "package": package}
        for kind, own, package in installed()
        if kind != "commands"
    ]
    if as_json:
        print_json({"recipes": about, "installed": brought})
        return
    print_columns(about.items())
    if brought:
        typer.echo("from installed packages:")
        print_columns([tuple(one.values()) for one in brought], indent=2)
