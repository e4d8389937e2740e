"""`pddpo explain`: what a key of a recipe means."""

from __future__ import annotations

from typing import Annotated

import typer

from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.config.explaining import Explained, every_key, explained, keys_of_section, settings_page


def explain(
    key: Annotated[str | None, typer.Argument(help="Key with dots, e.g. dual.rule; none: the sections.")] = None,
    page: Annotated[bool, typer.Option("--page", help="Print all keys as a page, as docs/settings.md has it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What a key of a recipe takes, its default, and what it does."""
    if page:
        typer.echo(settings_page(), nl=False)
        return
    if key is None:
        found, below = [one for one in every_key() if "." not in one.key], []
    else:
        found, below = explained(key), keys_of_section(key)
    if as_json:
        print_json({"keys": [_as_json(one) for one in found], "below": [_as_json(one) for one in below]})
        return
    if key is None:
        print_columns([(one.key, one.default, one.about) for one in found])
        return
    for one in found:
        where = f" ({one.variant})" if one.variant else ""
        typer.echo(f"{one.key}{where}: {one.takes}; default {one.default}")
        if one.about:
            typer.echo(f"    {one.about}")
    if below:
        rows = [(one.key.rpartition(".")[2], one.variant, one.takes, one.default, one.about) for one in below]
        print_columns([("key", "variant", "takes", "default", ""), *rows], indent=2)


def _as_json(one: Explained) -> dict[str, str]:
    return {"key": one.key, "variant": one.variant, "takes": one.takes, "default": one.default, "about": one.about}
