"""`pddpo recipes`: what ships with the package."""

from __future__ import annotations

from typing import Annotated

import typer

from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.config import load, recipe_names, to_yaml


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this recipe, resolved.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the shipped recipes, or show one with every setting."""
    if name is not None:
        config = load(name, check_files=False)
        if as_json:
            print_json(config.model_dump(mode="json"))
        else:
            typer.echo(to_yaml(config), nl=False)
        return
    about = {recipe: load(recipe, check_files=False).about for recipe in recipe_names()}
    if as_json:
        print_json({"recipes": about})
    else:
        print_columns(about.items())
