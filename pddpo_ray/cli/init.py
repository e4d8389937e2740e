"""`pddpo init`: reads files, model and machine, asks for the wish, and writes a recipe that fits it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from pddpo_ray.backends.machine import planned_machine
from pddpo_ray.errors import UserError

RECIPE = "recipe.yaml"
HEADER = """\
# Written by `pddpo init`. `pddpo explain KEY` says what a key means, `pddpo train {name} --dry-run` what it comes to.
"""
WISH = "What must hold, e.g. at most 2 % unsafe, at most 300 tokens, German only, no URLs, at least 95 % polite"


def init(
    out: Annotated[Path, typer.Argument(help="The recipe to write.")] = Path(RECIPE),
    model: Annotated[str | None, typer.Option(help="Model to align: a folder, or owner/model on the hub.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="File of pairs, `chosen` the more helpful answer.")] = None,
    limit: Annotated[
        list[str] | None, typer.Option(help="What must hold, in words or as NAME: {...}; may be repeated.")
    ] = None,
    safety: Annotated[
        Path | None, typer.Option(help="File of answers called safe or unsafe; asked where a limit is on unsafe ones.")
    ] = None,
    judge_endpoint: Annotated[
        str | None, typer.Option(help="URL of your judge's OpenAI-compatible endpoint, where a limit asks a judge.")
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="Name of the judge there.")] = None,
    judge_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds its key.")] = None,
    certificate_prompts: Annotated[
        Path | None, typer.Option(help="File of prompts that certificates alone ask; left out: those of the run.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="Plan for N GPUs in place of this machine's.")] = None,
    gpu_memory: Annotated[float, typer.Option(min=1, help="With --gpus: GiB of each.")] = 80.0,
    ask: Annotated[bool, typer.Option("--ask/--no-ask", help="Ask for what no option gives, or name it.")] = True,
    measure: Annotated[bool, typer.Option("--measure", help="Measure steps here for the time: minutes.")] = False,
) -> None:
    """Write a recipe for a wish: all rows, answers long enough for the limits, every device, a certificate."""
    from pddpo_ray.limits.wishes import wish_of

    if out.exists():
        raise UserError(f"{out} exists already; name another file")
    asked = _Asked(ask)
    model = asked("--model", "Model to align (a folder, or owner/model on the hub)", model, _model, "models/smollm2")
    helpful = asked("--pairs", "File of pairs, `chosen` the more helpful answer", pairs, _pairs, "helpful.jsonl")
    near = {"model": _beside(model, out), "unsafe_by": _made("cost", out)}

    def read(text: str) -> Any:
        return wish_of([text], **near)

    wish = wish_of(limit, **near) if limit else asked("--limit", WISH, None, read, "at most 5 % unsafe")
    harm = None
    if wish.unsafe:
        harm = asked("--safety", "File of answers that are called safe or unsafe", safety, _labels, "safety.jsonl")
    judge = {}
    if wish.judge:
        judge["endpoint"] = asked(
            "--judge-endpoint", "URL of the judge's endpoint", judge_endpoint, _url, "http://127.0.0.1:8000/v1"
        )
        judge["model"] = asked("--judge-model", "Name of the judge there", judge_model, str, "my-judge")
        judge |= {"key_env": judge_key_env} if judge_key_env else {}
    given = _found(out, model, helpful, wish, judge, certificate_prompts, planned_machine(gpus, gpu_memory))
    _write(out, given)
    typer.echo(f"{out}: written for {_said(given)}")
    for name in wish.files:
        typer.echo(f"{out.parent / name}: written; look at what it says")
    typer.echo("what follows:")
    for command in _next(out, model, helpful, harm, gpus, gpu_memory):
        typer.echo(f"  {command}")
    _costs(out, given, measure)


class _Asked:
    """What an option gave, or what is answered; without questions every missing option is named."""

    def __init__(self, ask: bool) -> None:
        self._ask = ask

    def __call__(self, option: str, question: str, given: object, read: Callable[[str], Any], default: str) -> Any:
        """Asked again until it can be used. Raises UserError for an option."""
        if given is not None:
            return read(str(given))
        if not self._ask:
            raise UserError(f"still to be given: {option}, {question}")
        while True:
            try:
                return read(typer.prompt(question, default=default))
            except UserError as error:
                typer.echo(f"  {error}")


def _found(
    out: Path, model: str, helpful: str, wish: Any, judge: dict[str, str], prompts: Path | None, machine: Any
) -> Any:
    """Reads the files and the model."""
    from pddpo_ray.data.checks.inspection import Settings
    from pddpo_ray.data.lengths import lengths_of
    from pddpo_ray.plan.memory import stored_shapes
    from pddpo_ray.plan.wished import Given
    from pddpo_ray.rollout.checkpoint import load_tokenizer
    from pddpo_ray.storage.checkpoints import checkpoint_folder, longest_context, weight_files
    from pddpo_ray.text.renderer import Renderer

    folder = checkpoint_folder(model)
    sizes = [shape for path in weight_files(folder) for shape in stored_shapes(path)]
    renderer = Renderer(load_tokenizer(folder), "tokenizer-or-plain", folder)
    lengths = lengths_of([helpful], Settings(means="helpful"), renderer)
    return Given(
        model=_beside(model, out),
        parameters=sum(map(math.prod, sizes)),
        context=longest_context(folder),
        pairs=_beside(helpful, out),
        lengths=lengths,
        wish=wish,
        machine=machine,
        reward=_made("reward", out),
        judge=judge,
        certificate_prompts=None if prompts is None else _beside(str(prompts), out),
    )


def _write(out: Path, given: Any) -> None:
    from pddpo_ray.plan.wished import recipe, written

    out.parent.mkdir(parents=True, exist_ok=True)
    for name, text in given.wish.files.items():
        file = out.parent / name
        if not file.exists():
            file.write_text(text, encoding="utf-8")
    out.write_text(HEADER.format(name=out) + written(recipe(given)), encoding="utf-8")


def _said(given: Any) -> str:
    gpus, lengths = given.machine.gpus, given.lengths
    device = f"{len(gpus)} x {gpus[0].name}" if gpus else f"{given.machine.cpus} CPU cores"
    return (
        f"{lengths.rows:,} pairs of {lengths.prompts:,} prompts, a model of {given.parameters:,} parameters, {device}"
    )


def _costs(out: Path, given: Any, measure: bool) -> None:
    """What the wish costs, as far as it is known before the score models are there."""
    from pddpo_ray.cli.output import print_columns
    from pddpo_ray.config import load
    from pddpo_ray.plan.printed import make_plan, plan_lines

    config = load(str(out), check_files=False)
    plan = make_plan(config, given.machine)
    typer.echo("what it costs (estimates)")
    wanted = ("memory", "labels", "draws that a certificate takes")
    for heading, rows in plan_lines(plan):
        if heading.startswith(wanted):
            typer.echo(f"  {heading}")
            print_columns(rows, indent=4)
    if measure:
        from pddpo_ray.cli.runs.train import measured_plan

        seconds = measured_plan(config.in_one_process(), given.machine)["seconds"]["wall"]["run"]
        typer.echo(f"  time: about {seconds / 3600:,.1f} h in one process here, an estimate from measured steps")
    else:
        typer.echo(f"  time: `pddpo train {out} --dry-run --calibrate` measures a step on the machine that will run it")


def _model(text: str) -> str:
    folder = Path(text)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UserError(f"{text} is no model folder: it has no config.json")
    if not folder.is_dir() and text.count("/") != 1:
        raise UserError(f"{text} is no folder; give one in Hugging Face layout, or owner/model")
    if not folder.is_dir() and folder.parent.is_dir():
        raise UserError(f"{text} is no folder yet; `pddpo model fetch smollm2 --to {text}` makes a small one")
    return text


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise UserError(f"{text} is no URL; write http://HOST:PORT/v1")
    return text


def _pairs(text: str) -> str:
    return _readable(text, "pairs", lambda seen: seen.get("helpful") or seen.get("harmless"))


def _labels(text: str) -> str:
    return _readable(text, "answers called safe or unsafe", lambda seen: seen.get("unsafe") is not None)


def _readable(text: str, what: str, holds: Callable[[dict[str, Any]], Any]) -> str:
    """A file of which at least one row is good and says what is wanted."""
    from pddpo_ray.data import Settings
    from pddpo_ray.data.checks.inspection import inspect

    inspection = inspect([text], Settings())
    if not inspection.good:
        raise UserError(f"{text}: none of {inspection.rows} rows can be used; `pddpo data check {text}` says why")
    if not holds(_told(inspection)):
        raise UserError(f"{text} holds no {what}; `pddpo data stats {text}` says what it holds")
    return text


def _told(inspection: Any) -> dict[str, Any]:
    """How many rows say which answer is better, less harmful, or unsafe."""
    told: dict[str, Any] = {"helpful": 0, "harmless": 0, "unsafe": None}
    for good in inspection.examples():
        example = good.example
        told["helpful"] += example.better is not None
        told["harmless"] += example.safer is not None
        if any(answer.safe is not None for answer in example.answers):
            told["unsafe"] = (told["unsafe"] or 0) + 1
    return told


def _beside(path: str, recipe: Path) -> str:
    """The same path as a recipe has it, which is relative to its own folder; a model of the hub stays."""
    if Path(path).is_absolute() or (path.count("/") == 1 and not Path(path).parent.is_dir()):
        return path
    return os.path.relpath(path, recipe.parent)


def _made(name: str, recipe: Path) -> str:
    """A score model that `pddpo scorer train` will write, as the recipe has it: with `./`, so that it is a folder."""
    path = os.path.relpath(f"scorers/{name}", recipe.parent)
    return path if path.startswith("..") else f"./{path}"


def _next(out: Path, model: str, helpful: str, harm: str | None, gpus: int | None, gpu_memory: float) -> list[str]:
    there = "" if gpus is None else f" --gpus {gpus} --gpu-memory {gpu_memory:g}"
    return [
        f"pddpo scorer train {helpful} --kind reward --base {model} --out scorers/reward",
        *([f"pddpo scorer train {harm} --kind cost --base {model} --out scorers/cost"] if harm else []),
        f"pddpo train {out} --dry-run{there}",
        f"pddpo train {out} --run runs/mine",
        "pddpo serve runs/mine",
    ]
