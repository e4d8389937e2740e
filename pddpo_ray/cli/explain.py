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
        rows, below = first_keys(), []
    else:
        rows = explained(key)
        below = keys_of_section(rows[0].key) if len({row.key for row in rows}) == 1 else []
    if as_json:
        print_json({"keys": [_as_json(row) for row in rows], "below": [_as_json(row) for row in below]})
        return
    if key is None:
        print_columns([(row.key, row.default, row.about) for row in rows])
        typer.echo("`pddpo explain KEY` or WORDS says more, e.g. `pddpo explain batch size`; all: docs/settings.md")
        return
    for row in rows:
        where = f" ({row.variant})" if row.variant else ""
        typer.echo(f"{row.key}{where}: {row.takes}; default {row.default}; changed by: {row.changed_by}")
        if row.about:
            typer.echo(f"    {row.about}")
    if below:
        cells = [(row.key.rpartition(".")[2], row.variant, row.takes, row.default, row.about) for row in below]
        print_columns([("key", "variant", "takes", "default", ""), *cells], indent=2)


def _as_json(row: Explained) -> dict[str, str]:
    data = {"key": row.key, "variant": row.variant, "takes": row.takes, "default": row.default, "about": row.about}
    return data | {"changed_by": row.changed_by}
