"""`pddpo init`: reads files, model and machine, asks for the wish, and writes a recipe that fits it."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pddpo_ray.backends.machine import planned_machine
from pddpo_ray.errors import UserError

RECIPE = "recipe.yaml"
HEADER = """\
# Written by `pddpo init`. `pddpo explain KEY` says what a key means, `pddpo train {name} --dry-run` what it comes to.
"""
SPARE = 1.1
"""Prompts that are put aside for the rounds over those that they ask: one in a hundred may be too long."""
SLOW_S, MOST_CHARACTERS = 600.0, 2000
"""How long the model may be asked before a recipe is written, and the longest prompts that it then gets."""
WISH = "What must hold, e.g. at most 2 % unsafe, at most 300 tokens, German only, no URLs, at least 95 % polite"


def init(
    out: Annotated[Path, typer.Argument(help="The recipe to write.")] = Path(RECIPE),
    model: Annotated[str | None, typer.Option(help="Model to align: a folder, or owner/model on the hub.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="File of pairs, `chosen` the more helpful answer.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="File of your users' prompts; left out: those of the pairs.")
    ] = None,
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
        Path | None, typer.Option(help="File of prompts that certificates alone ask; left out: a part of --prompts.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="Plan for N GPUs in place of this machine's.")] = None,
    gpu_memory: Annotated[float, typer.Option(min=1, help="With --gpus: GiB of each.")] = 80.0,
    ask: Annotated[bool, typer.Option("--ask/--no-ask", help="Ask for what no option gives, or name it.")] = True,
) -> None:
    """Write a recipe for your model, pairs and limits.

    Of a size that the machine can do, with answers that end, every device in use, and a certificate.
    """
    from pddpo_ray.limits.wishes import wish_of

    if out.exists():
        raise UserError(f"{out} exists already; name another file")
    option = _OptionReader(ask)
    model = option("--model", "Model to align (a folder, or owner/model on the hub)", model, _model, "models/smollm2")
    helpful = option("--pairs", "File of pairs, `chosen` the more helpful answer", pairs, _pairs, "helpful.jsonl")
    sources = {"model": _relative_path(model, out), "unsafe_by": _scorer_path("cost", out)}

    def read(text: str) -> Any:
        return wish_of([text], **sources)

    wish = wish_of(limit, **sources) if limit else option("--limit", WISH, None, read, "at most 5 % unsafe")
    harm = None
    if wish.unsafe:
        harm = option("--safety", "File of answers that are called safe or unsafe", safety, _labels, "safety.jsonl")
    judge = {}
    if wish.judge:
        judge["endpoint"] = option(
            "--judge-endpoint", "URL of the judge's endpoint", judge_endpoint, _url, "http://127.0.0.1:8000/v1"
        )
        judge["model"] = option("--judge-model", "Name of the judge there", judge_model, str, "my-judge")
        judge |= {"key_env": judge_key_env} if judge_key_env else {}
    machine = planned_machine(gpus, gpu_memory)
    prompt_files = _prompts(out, prompts, certificate_prompts, machine)
    inputs = _read_inputs(out, model, helpful, wish, judge, prompt_files, machine)
    seconds = _write(out, inputs)
    typer.echo(f"{out}: written for {_inputs_summary(inputs)}")
    for name in wish.files:
        typer.echo(f"{out.parent / name}: written; look at what it says")
    for path, count, use in prompt_files.written:
        typer.echo(f"{path}: written, {count:,} of your prompts, {use}")
    typer.echo("what follows:")
    for command in _commands(out, model, helpful, harm, gpus, gpu_memory):
        typer.echo(f"  {command}")
    _print_costs(out, inputs, seconds)


@dataclass(frozen=True)
class _Prompts:
    """Files of prompts, and what was written of them."""

    rounds: str | None = None
    certified: str | None = None
    written: tuple[tuple[Path, int, str], ...] = ()


class _OptionReader:
    """Takes a value from its option or asks for it; with --no-ask a missing one is an error."""

    def __init__(self, ask: bool) -> None:
        self._ask = ask

    def __call__(self, option: str, question: str, value: object, read: Callable[[str], Any], default: str) -> Any:
        """Asks until the answer can be read. Raises UserError for an option."""
        if value is not None:
            return read(str(value))
        missing = UserError(f"still to be given: {option}, {question}")
        if not self._ask:
            raise missing
        while True:
            try:
                return read(typer.prompt(question, default=default))
            except UserError as error:
                typer.echo(f"  {error}")
            except typer.Abort:  # Ctrl-C, or a standard input that has ended
                if sys.stdin.isatty():
                    raise
                typer.echo()
                raise missing from None


def _prompts(out: Path, prompts: Path | None, certified: Path | None, machine: Any) -> _Prompts:
    """Prompts of the rounds and of certificates; one file is split in two where no second one is given."""
    from pddpo_ray.data.prompt_parts import different_prompts, two_parts, write_prompts
    from pddpo_ray.plan.wish_size import MOVED

    if prompts is None or certified is not None:
        rounds, apart = (None if path is None else _readable(str(path), "prompts") for path in (prompts, certified))
        return _Prompts(rounds, apart)
    prompt_list = different_prompts([_readable(str(prompts), "prompts")])
    if len(prompt_list) < 2:
        raise UserError(f"{prompts}: one prompt cannot be parted between rounds and certificate; give more")
    count = len(prompt_list) // 2 if machine.gpus else math.ceil(SPARE * MOVED)
    out.parent.mkdir(parents=True, exist_ok=True)
    files = []
    for part, name, use in zip(
        two_parts(prompt_list, count),
        ("rounds", "certificate"),
        ("for the rounds", "for certificates alone"),
        strict=True,
    ):
        path = out.with_name(f"{out.stem}-{name}.jsonl")
        write_prompts(part, path)
        files.append((path, len(part), use))
    return _Prompts(str(files[0][0]), str(files[1][0]), tuple(files))


def _read_inputs(
    out: Path, model: str, helpful: str, wish: Any, judge: dict[str, str], prompts: _Prompts, machine: Any
) -> Any:
    """Reads the files and the model, which answers some prompts where that is quick."""
    from pddpo_ray.data.checks.inspection import Settings
    from pddpo_ray.data.lengths import lengths_of
    from pddpo_ray.data.prompt_parts import different_prompts
    from pddpo_ray.plan.wish_size import Inputs
    from pddpo_ray.rollout.checkpoint import load_tokenizer
    from pddpo_ray.storage.checkpoints import checkpoint_folder, longest_context, parameters_in
    from pddpo_ray.text.renderer import Renderer

    folder = checkpoint_folder(model)
    renderer = Renderer(load_tokenizer(folder), "tokenizer-or-plain", folder)
    lengths = lengths_of([helpful], Settings(means="helpful"), renderer)
    prompt_lengths = None if prompts.rounds is None else lengths_of([prompts.rounds], Settings(judged=False), renderer)
    inputs = Inputs(
        model=_relative_path(model, out),
        parameters=parameters_in(folder),
        context=longest_context(folder),
        pairs=_relative_path(helpful, out),
        lengths=lengths,
        wish=wish,
        machine=machine,
        reward=_scorer_path("reward", out),
        judge=judge,
        prompts=None if prompts.rounds is None else _relative_path(prompts.rounds, out),
        asked=prompt_lengths,
        certificate_prompts=None if prompts.certified is None else _relative_path(prompts.certified, out),
        certified=0 if prompts.certified is None else len(different_prompts([prompts.certified])),
    )
    return replace(inputs, drawn=_draw_answers(model, different_prompts([prompts.rounds or helpful]), inputs))


def _draw_answers(model: str, prompts: list[Any], inputs: Any) -> Any:
    """The model's own answers to some prompts; None where this machine is too slow for them."""
    from pddpo_ray.backends.machine import inspect_machine
    from pddpo_ray.cli.output import spoken
    from pddpo_ray.plan.first_draws import ASKED, first_draws
    from pddpo_ray.plan.hours import Texts
    from pddpo_ray.plan.wish_size import longest_answer
    from pddpo_ray.plan.wished import extended

    machine, longest = inspect_machine(), longest_answer(inputs)
    if inputs.context is not None:
        longest = min(longest, inputs.context // 2)
    seconds = ASKED * Texts(inputs.parameters, 0, longest / 2, 0).draw_s(machine.cpus)
    if not machine.gpus and seconds > SLOW_S:
        typer.echo(
            f"the model is not asked how long its answers are: on these cores that takes {seconds / 60:.0f} minutes"
        )
        return None
    short = [prompt for prompt in prompts if len(prompt.first_user_text) <= MOST_CHARACTERS] or prompts
    typer.echo(f"the model answers {min(ASKED, len(short))} of the prompts, to see where its answers end ...")
    with spoken(lambda line: typer.echo(f"  {line}")):
        draws = first_draws(model, short, longest, extended(inputs).policy.temperature)
    words = [count for answer in draws.sample for count in answer.words]
    typer.echo(
        f"  {sum(words) / len(words):.1f} words on average, half within {draws.answer_at(0.5)} tokens, 97 in 100 within"
        f" {draws.answer_at(0.97)}"
    )
    return draws


def _write(out: Path, inputs: Any) -> float | None:
    """Writes the recipe and the files of its limits; returns the seconds that it is planned to take, on CPUs."""
    from pddpo_ray.plan.wished import sized, written

    out.parent.mkdir(parents=True, exist_ok=True)
    for name, text in inputs.wish.files.items():
        file = out.parent / name
        if not file.exists():
            file.write_text(text, encoding="utf-8")
    sections, seconds = sized(inputs)
    out.write_text(HEADER.format(name=out) + written(sections), encoding="utf-8")
    return seconds


def _inputs_summary(inputs: Any) -> str:
    gpus, lengths = inputs.machine.gpus, inputs.lengths
    device = f"{len(gpus)} x {gpus[0].name}" if gpus else f"{inputs.machine.cpus} CPU cores"
    return (
        f"{lengths.rows:,} pairs of {lengths.prompts:,} prompts, a model of {inputs.parameters:,} parameters, {device}"
    )


def _print_costs(out: Path, inputs: Any, seconds: float | None) -> None:
    """What the wish costs, as far as it is known before the score models are there."""
    from pddpo_ray.cli.output import print_columns
    from pddpo_ray.config import load
    from pddpo_ray.plan.printed import make_plan, plan_lines
    from pddpo_ray.plan.wished import planned_time

    config = load(str(out), check_files=False)
    plan = make_plan(config, inputs.machine)
    typer.echo("what it costs (estimates)")
    headings = ("memory", "labels", "draws that a certificate takes")
    for heading, rows in plan_lines(plan):
        if heading.startswith(headings):
            typer.echo(f"  {heading}")
            print_columns(rows, indent=4)
    if seconds is not None:
        typer.echo(f"  time: {planned_time(inputs, seconds)}")


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
    return _readable(text, "pairs", lambda counts: counts.get("helpful") or counts.get("harmless"))


def _labels(text: str) -> str:
    return _readable(text, "answers called safe or unsafe", lambda counts: counts.get("unsafe") is not None)


def _readable(text: str, content: str, holds: Callable[[dict[str, Any]], Any] | None = None) -> str:
    """A file with a good row whose counts `holds` accepts; None: prompts. Raises UserError."""
    from pddpo_ray.data import Settings
    from pddpo_ray.data.checks.inspection import inspect

    inspection = inspect([text], Settings(judged=holds is not None))
    if not inspection.good:
        raise UserError(f"{text}: none of {inspection.rows} rows can be used; `pddpo data check {text}` says why")
    if holds is not None and not holds(_label_counts(inspection)):
        raise UserError(f"{text} holds no {content}; `pddpo data stats {text}` says what it holds")
    return text


def _label_counts(inspection: Any) -> dict[str, Any]:
    """How many rows say which answer is better, less harmful, or unsafe."""
    counts: dict[str, Any] = {"helpful": 0, "harmless": 0, "unsafe": None}
    for good in inspection.examples():
        example = good.example
        counts["helpful"] += example.better is not None
        counts["harmless"] += example.safer is not None
        if any(answer.safe is not None for answer in example.answers):
            counts["unsafe"] = (counts["unsafe"] or 0) + 1
    return counts


def _relative_path(path: str, recipe: Path) -> str:
    """The path relative to the recipe's folder; absolute paths and models of the hub stay."""
    if Path(path).is_absolute() or (path.count("/") == 1 and not Path(path).parent.is_dir()):
        return path
    return os.path.relpath(path, recipe.parent)


def _scorer_path(name: str, recipe: Path) -> str:
    """A score model that `pddpo scorer train` will write, as the recipe has it: with `./`, so that it is a folder."""
    path = os.path.relpath(f"scorers/{name}", recipe.parent)
    return path if path.startswith("..") else f"./{path}"


def _commands(out: Path, model: str, helpful: str, harm: str | None, gpus: int | None, gpu_memory: float) -> list[str]:
    gpu_options = "" if gpus is None else f" --gpus {gpus} --gpu-memory {gpu_memory:g}"
    scorers = [("reward", shlex.quote(helpful)), ("cost", shlex.quote(harm))] if harm else []
    recipe, base = shlex.quote(str(out)), shlex.quote(model)
    return [
        *(f"pddpo scorer train {rows} --kind {kind} --base {base} --out scorers/{kind}" for kind, rows in scorers),
        f"pddpo train {recipe} --dry-run{gpu_options}",
        f"pddpo train {recipe} --run runs/mine",
        "pddpo serve runs/mine",
    ]
