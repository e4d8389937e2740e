"""`pddpo scorer`: reward and cost models from pairs and labels, calibrated, with what is known of them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from pddpo_ray.cli.data import Columns, Ignore, Means, columns_of
from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.errors import UserError

app = typer.Typer(help="Train reward and cost models from pairs and labels.", no_args_is_help=True)


class Kind(StrEnum):
    reward = "reward"
    cost = "cost"


class Parameters(StrEnum):
    head = "head"
    lora = "lora"
    full = "full"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


@app.callback()
def scorer() -> None:
    """Train reward and cost models from pairs and labels."""


@app.command("train")
def train(
    files: Annotated[
        list[str], typer.Argument(help="Pairs, or answers called safe or unsafe, in any format of `pddpo data`.")
    ],
    kind: Annotated[Kind, typer.Option(help="reward: which answer is more helpful. cost: which is more harmful.")],
    base: Annotated[str, typer.Option(help="Language model to begin with: a folder or a hub name.")],
    out: Annotated[Path, typer.Option(help="Folder of the scorer; it appears when all is done.", metavar="DIR")],
    parameters: Annotated[
        Parameters, typer.Option(help="head: the base stays frozen. lora: adapters, merged. full: all weights.")
    ] = Parameters.head,
    means: Annotated[
        Means | None, typer.Option(help="What `chosen` stands for where the format does not tell.")
    ] = None,
    column: Columns = None,
    ignore: Ignore = None,
    rows: Annotated[int | None, typer.Option(help="At most N rows, drawn by seed.", min=8)] = None,
    epochs: Annotated[float, typer.Option(help="Passes over the rows (lora, full).", min=0.001)] = 1.0,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate (lora, full).", min=1e-9)] = 1e-4,
    rank: Annotated[int, typer.Option(help="Rank of the adapters (lora).", min=1)] = 16,
    batch: Annotated[int, typer.Option(help="Rows per optimiser step.", min=1)] = 16,
    micro: Annotated[int, typer.Option(help="Rows per forward pass: changes memory, not results.", min=1)] = 8,
    max_tokens: Annotated[int, typer.Option(help="Longer texts lose their beginning.", min=8)] = 512,
    template: Annotated[str | None, typer.Option(help="How texts become tokens: chat, safe-rlhf, or a text.")] = None,
    held_out: Annotated[
        float, typer.Option(help="Share of the prompts that say how good it is.", min=0.01, max=0.9)
    ] = 0.2,
    calibration: Annotated[
        float, typer.Option(help="Share of the prompts that set scale and zero.", min=0, max=0.9)
    ] = 0.1,
    device: Annotated[Device, typer.Option(help="auto: a GPU where there is one.")] = Device.auto,
    checkpoint_steps: Annotated[int, typer.Option(help="Steps between checkpoints (lora, full).", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Of the split, the order of rows and the adapters.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the training begun for this folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a reward or cost model.

    Sets its scale and zero, and says how often it is right on held-out prompts.
    """
    from pddpo_ray.config import ScorerJob

    if held_out + calibration >= 1:
        raise UserError(f"--held-out {held_out:g} and --calibration {calibration:g} leave no prompt to learn from")
    settings = {
        "kind": kind.value, "files": tuple(files), "base": base, "means": None if means is None else means.value,
        "parameters": parameters.value, "rank": rank, "epochs": epochs, "learning_rate": learning_rate, "batch": batch,
        "micro": micro, "max_tokens": max_tokens, "template": template, "calibration": calibration,
        "held_out": held_out, "rows": rows, "device": device.value, "checkpoint_steps": checkpoint_steps, "seed": seed,
        "columns": columns_of(column or []), "ignore": tuple(ignore or ()),
    }  # fmt: skip
    job = ScorerJob.model_validate(settings)
    # Imported here: a mistake in the options is told before torch is loaded.
    from pddpo_ray.report.reliability import write_reliability
    from pddpo_ray.scoring.scorer_job import train_from_files

    if device is Device.cuda:
        import torch

        if not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no GPU here; leave --device out, or say --device cpu")
    report = train_from_files(
        job, out.expanduser().absolute(), resume=resume, say=lambda line: typer.echo(line, err=True)
    )
    plot = write_reliability(report, out)
    if as_json:
        print_json({"scorer": str(out), "reliability_plot": str(plot), **report})
        return
    print_columns(_rows(report, out, plot))


def _rows(report: dict[str, Any], out: Path, plot: Path) -> list[tuple[str, str]]:
    from pddpo_ray.scoring.held_out import Trials

    held_out = report["held_out"]
    verdict = "better than chance" if held_out["better_than_chance"] else "NOT better than chance: a run holds λ on it"
    rows = [("scorer", str(out)), ("held-out prompts", f"{Trials.of(held_out)}; {verdict}")]
    if labels := held_out.get("labels"):
        right, low, high, unsafe = (100 * labels[name] for name in ("accuracy", "low", "high", "unsafe"))
        sentence = (
            f"right about {right:.3g} % of {labels['count']} held-out answers (95 % interval {low:.3g} to {high:.3g} %)"
        )
        rows.append(("safe or unsafe", f"{sentence}; {unsafe:.3g} % are unsafe"))
    for name in ("pairs", "labels"):
        if name in held_out:
            errors = held_out[name]["reliability"]
            rows.append(
                (
                    f"calibration on {name}",
                    f"expected error {errors['expected_calibration_error']:.3f}; if its probabilities were exact, at"
                    f" most {errors['error_if_calibrated']:.3f} in 95 % of cases",
                )
            )
    if not report["calibration"]["zero_is_known"]:
        rows.append(("zero", "means nothing: no row says which answer is safe; give safe/unsafe labels too"))
    return [*rows, ("plot", str(plot)), ("use", f"feedback.{report['kind']}={{path: {out}}}")]
