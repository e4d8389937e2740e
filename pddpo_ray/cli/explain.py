"""`pddpo explain`: what a key of a recipe means."""

from __future__ import annotations

from typing import Annotated

import typer

from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.config.explaining import Explained, explained, first_keys, keys_of_section, settings_page


def explain(
    words: Annotated[
        list[str] | None, typer.Argument(help="Key with dots, e.g. dual.rule, or words; none: what matters first.")
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Print all keys as a page, as docs/settings.md has it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a key of a recipe takes and does."""
    key = " ".join(words) if words else None
    if page:
        typer.echo(settings_page(laboratory=key == "world"), nl=False)
        return
    if key is None:
        found, below = first_keys(), []
    else:
        found = explained(key)
        below = keys_of_section(found[0].key) if len({one.key for one in found}) == 1 else []
    if as_json:
        print_json({"keys": [_as_json(one) for one in found], "below": [_as_json(one) for one in below]})
        return
    if key is None:
        print_columns([(one.key, one.default, one.about) for one in found])
        typer.echo("`pddpo explain KEY` or WORDS says more, e.g. `pddpo explain batch size`; all: docs/settings.md")
        return
    for one in found:
        where = f" ({one.variant})" if one.variant else ""
        typer.echo(f"{one.key}{where}: {one.takes}; default {one.default}; changed by: {one.changed_by}")
        if one.about:
            typer.echo(f"    {one.about}")
    if below:
        rows = [(one.key.rpartition(".")[2], one.variant, one.takes, one.default, one.about) for one in below]
        print_columns([("key", "variant", "takes", "default", ""), *rows], indent=2)


def _as_json(one: Explained) -> dict[str, str]:
    said = {"key": one.key, "variant": one.variant, "takes": one.takes, "default": one.default, "about": one.about}
    return said | {"changed_by": one.changed_by}
