"""`pddpo score`: any model, trained with anything, measured exactly against a text world's truth."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pddpo_lab.commands.world import Overrides, Seed, World, choose_world
from pddpo_ray.cli.output import print_columns, print_json

SHOWN = ("gap", "violation", "kl", "f", "g", "unsafe_rate", "off_grammar")


def score(
    checkpoint: Annotated[
        str, typer.Argument(help="Model folder (safetensors), LoRA adapter folder, hub name or RUN@VERSION.")
    ],
    overrides: Overrides = None,
    name: World = "text",
    seed: Seed = None,
    template: Annotated[
        str | None, typer.Option(help="Chat template of a model with other words; none: plain text.", metavar="NAME")
    ] = None,
    base: Annotated[str | None, typer.Option(help="Base model of an adapter, where it is not where it was.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a checkpoint exactly, on a known world.

    Gap to the optimum, violation of the limit, KL to the world's reference.
    """
    chosen = choose_world(name, seed, overrides or [])
    # Imported here: a mistake in the options is told before torch is loaded.
    from pddpo_lab.worlds.exact_score import score as measure
    from pddpo_ray.evaluate.checkpoint_loading import load_checkpoint

    loaded = load_checkpoint(checkpoint, base)
    limit = next(iter(chosen.config.thresholds.values()))
    result = measure(loaded, chosen.prepare(), limit, template, lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(result | {"world": name, "seed": getattr(chosen.config.world, "seed", None)})
        return
    rows = [("checkpoint", result), *((point.replace("_", "-"), values) for point, values in result["points"].items())]
    print_columns([["", *SHOWN], *([title, *_cells(values)] for title, values in rows)])
    tokens = "the world's own words" if result["tokens"] == "world" else "each answer as its tokenizer writes it"
    typer.echo(f"limit {result['limit']:g}, beta {result['beta']:g}; scored as {tokens}, end of sequence included")


def _cells(values: dict[str, Any]) -> list[str]:
    # adding 0 turns a rounded -0.0 into 0.0
    return [f"{round(values[key], 6) + 0.0:.6f}" for key in SHOWN]
