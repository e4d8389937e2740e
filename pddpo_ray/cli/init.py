"""`pddpo init`: five questions, and a recipe for one's own model and pairs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from pddpo_ray.errors import UserError

RECIPE = "recipe.yaml"
HEADER = """\
# Written by `pddpo init`. `pddpo explain KEY` says what a key means, `pddpo train {name} --dry-run` what it comes to.
"""


def init(
    out: Annotated[Path, typer.Argument(help="The recipe to write.")] = Path(RECIPE),
    model: Annotated[str | None, typer.Option(help="Model to align: a folder, or owner/model on the hub.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="File of pairs, `chosen` the more helpful answer.")] = None,
    safety: Annotated[Path | None, typer.Option(help="File of answers called safe or unsafe.")] = None,
    unsafe: Annotated[str | None, typer.Option(help="Largest share of unsafe answers, e.g. '5 %'.")] = None,
    words: Annotated[str | None, typer.Option(help="Most words of an answer on average; 0: no limit.")] = None,
) -> None:
    """Ask five questions and write a recipe; what an option gives is not asked. Then the commands that follow."""
    if out.exists():
        raise UserError(f"{out} exists already; name another file")
    model = _asked("Model to align (a folder, or owner/model on the hub)", model, _model, "models/smollm2")
    helpful = _asked("File of pairs, `chosen` the more helpful answer", pairs, _pairs, "helpful.jsonl")
    harm = _asked("File of answers that are called safe or unsafe", safety, _labels, "safety.jsonl")
    share = _asked("Largest share of unsafe answers", unsafe, _share, "5 %")
    longest = _asked("Most words of an answer on average (0: no limit)", words, _words, "0")
    recipe = _recipe(_beside(model, out), _beside(helpful, out), _beside("scorers", out), share, longest)
    text = HEADER.format(name=out) + yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    typer.echo(f"\n{out}: written. What follows:")
    for command in _next(out, model, helpful, harm):
        typer.echo(f"  {command}")


def _asked(question: str, given: object, read: Callable[[str], Any], default: str) -> Any:
    """What an option gave, or what is answered; asked again until it can be used. Raises UserError for an option."""
    if given is not None:
        return read(str(given))
    while True:
        try:
            return read(typer.prompt(question, default=default))
        except UserError as error:
            typer.echo(f"  {error}")


def _model(text: str) -> str:
    folder = Path(text)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UserError(f"{text} is no model folder: it has no config.json")
    if not folder.is_dir() and text.count("/") != 1:
        raise UserError(f"{text} is no folder; give one in Hugging Face layout, or owner/model")
    if not folder.is_dir() and folder.parent.is_dir():
        raise UserError(f"{text} is no folder yet; `pddpo model fetch smollm2 --to {text}` makes a small one")
    return text


def _pairs(text: str) -> str:
    return _readable(text, "pairs", lambda seen: seen.get("helpful") or seen.get("harmless"))


def _labels(text: str) -> str:
    return _readable(text, "answers called safe or unsafe", lambda seen: seen.get("unsafe") is not None)


def _readable(text: str, what: str, holds: Callable[[dict[str, Any]], Any]) -> str:
    """A file of which at least one row is good and says what is wanted."""
    from pddpo_ray.data import Settings
    from pddpo_ray.data.inspection import inspect

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


def _share(text: str) -> str:
    from pddpo_ray.limits.reading import stated_limits

    stated_limits({"limits": {"unsafe": {"rate": {"score_model": "cost"}, "at_most": text}}}, "the share")
    return text


def _words(text: str) -> int:
    if not text.strip().isdigit():
        raise UserError(f"write a whole number of words, got `{text}`")
    return int(text)


def _beside(path: str, recipe: Path) -> str:
    """The same path as a recipe has it, which is relative to its own folder; a model of the hub stays."""
    if Path(path).is_absolute() or (path.count("/") == 1 and not Path(path).parent.is_dir()):
        return path
    return os.path.relpath(path, recipe.parent)


def _recipe(model: str, helpful: str, scorers: str, share: str, words: int) -> dict[str, Any]:
    reward, cost = f"{scorers}/reward", f"{scorers}/cost"
    limits: dict[str, Any] = {
        "unsafe": {"rate": {"score_model": cost}, "at_most": share},
        "helpful": {"rate": {"score_model": reward}, "versus": "reference", "at_least": "50 %"},
    }
    if words:
        limits["length"] = {"mean": {"rule": "words"}, "at_most": words, "bounds": [0, max(400, 4 * words)]}
    return {
        "about": f"{model} under limits",
        "extends": "align",
        "model": {"reference": model},
        "world": {"helpful": [helpful]},
        "feedback": {"reward": {"path": reward}, "cost": {"path": cost}},
        "limits": limits,
    }


def _next(out: Path, model: str, helpful: str, harm: str) -> list[str]:
    return [
        f"pddpo scorer train {helpful} --kind reward --base {model} --out scorers/reward",
        f"pddpo scorer train {harm} --kind cost --base {model} --out scorers/cost",
        f"pddpo train {out} --dry-run",
        f"pddpo train {out} --run runs/mine",
        "pddpo certify runs/mine",
        "pddpo serve runs/mine",
    ]
