"""`pddpo model`: models to work with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Fetch a small pretrained model.", no_args_is_help=True)


@app.callback()
def model() -> None:
    """Fetch a small pretrained model."""


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="smollm2: SmolLM2-135M-Instruct, Apache-2.0, 0.5 GB.")],
    to: Annotated[Path | None, typer.Option("--to", help="Folder to write; the cache when left out.")] = None,
) -> None:
    """Write a pretrained model as an ordinary folder.

    Of safetensors; prints its path, which a recipe can name.
    """
    from pddpo_ray.training.models.pretrained import fetch as fetch_model

    typer.echo(fetch_model(name, to))
