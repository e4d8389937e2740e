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
    summaries = {recipe: load(recipe, check_files=False).about for recipe in recipe_names()}
    plugins = [
        {"kind": KINDS[kind], "name": plugin, "package": package}
        for kind, plugin, package in installed()
        if kind != "commands"
    ]
    if as_json:
        print_json({"recipes": summaries, "installed": plugins})
        return
    print_columns(summaries.items())
    if plugins:
        typer.echo("from installed packages:")
        print_columns([tuple(plugin.values()) for plugin in plugins], indent=2)
