"""`pddpo evaluate`: what policies are worth, exactly on worlds, by scorers and judges elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pddpo_ray.cli.output import print_columns, print_json
from pddpo_ray.errors import UserError


def evaluate(
    models: Annotated[
        list[str], typer.Argument(help="Models: a folder, hub name or run, each as PATH or NAME=PATH; RUN@policy-3.")
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Questions: a prompt or preference file, hf:NAME, truthfulqa or pku-test."),
    ] = None,
    benign: Annotated[
        list[str] | None, typer.Option(help="Harmless questions, on which a refusal counts as over-refusal.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Anchor of ratings and divergence; default: the first model.", metavar="MODEL")
    ] = None,
    reward_model: Annotated[str | None, typer.Option(help="Scorer of helpfulness.", metavar="PATH")] = None,
    cost_model: Annotated[str | None, typer.Option(help="Scorer of harm; above 0 is unsafe.", metavar="PATH")] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            help="URL of an OpenAI-compatible endpoint that compares answers; key in $PDDPO_JUDGE_KEY.", metavar="URL"
        ),
    ] = None,
    judge_model: Annotated[str, typer.Option(help="Model that the judge's endpoint is asked for.")] = "",
    template: Annotated[
        str,
        typer.Option(
            help="Template of questions: plain, hh, safe-rlhf, alpaca, chatml, tokenizer, or tokenizer-or-NAME."
        ),
    ] = "tokenizer-or-plain",
    questions: Annotated[int | None, typer.Option(min=1, help="At most N questions of a set, by seed.")] = None,
    each: Annotated[int, typer.Option(min=1, help="Answers per question.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 512,
    policy_temperature: Annotated[
        float | None, typer.Option(min=1e-3, help="All models' logits are divided by it; default: the runs', else 1.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="Relative to the policy's; 0: greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0,
    engine: Annotated[str, typer.Option(help="transformers or vllm.")] = "transformers",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    elo: Annotated[str, typer.Option(help="likelihood (Bradley-Terry, bootstrap), or iterative.")] = "likelihood",
    journal: Annotated[str | None, typer.Option(help="Database of a run that is not kept in its folder.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results; default runs/evaluation.", metavar="DIR")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Evaluate policies. A run alone, on a world: exact f, g and gap of every round. Models with sets: estimates."""
    set_names = [*(sets or []), *(benign or [])]
    if not set_names:
        _exact(models, journal, as_json=as_json)
        return
    from pddpo_ray.evaluate import command
    from pddpo_ray.evaluate.models import parse_model
    from pddpo_ray.evaluate.models import policy_temperature as temperature_of_runs
    from pddpo_ray.evaluate.scorers import scorers_of
    from pddpo_ray.evaluate.sets import read_set
    from pddpo_ray.records import Decoding

    chosen = tuple(parse_model(model) for model in models)
    anchor = parse_model(reference) if reference else chosen[0]
    plan = command.Plan(
        models=chosen,
        reference=anchor,
        sets=tuple(read_set(name, limit=questions, benign=name in (benign or []), seed=seed) for name in set_names),
        template=template,
        policy_temperature=policy_temperature or temperature_of_runs([*chosen, anchor]),
        decoding=Decoding(temperature=temperature, top_p=top_p, max_tokens=max_tokens),
        each=each,
        seed=seed,
        engine=_one_of("--engine", engine, ("transformers", "vllm")),  # type: ignore[arg-type]
        dtype=_one_of("--dtype", dtype, ("float32", "bfloat16")),
        elo=_one_of("--elo", elo, ("likelihood", "iterative")),  # type: ignore[arg-type]
    )
    folder = (out or Path("runs") / "evaluation").expanduser().absolute()
    scorers = scorers_of(reward_model, cost_model, judge, judge_model, dtype)
    result = command.evaluate(plan, scorers, folder, lambda line: typer.echo(line, err=True))
    if as_json:
        print_json({"out": str(folder), **result})
        return
    for name, asked_set in result["sets"].items():
        typer.echo(f"\n{name}: {asked_set['questions']} questions, {asked_set['pairs']} pairs")
        print_columns(_lines(asked_set), indent=2)
    typer.echo(f"\nfolder: {folder}")


def _exact(models: Sequence[str], journal: str | None, *, as_json: bool) -> None:
    """A run on a world, from its tables."""
    if len(models) != 1 or not Path(models[0]).is_dir():
        raise UserError("models need questions: add --set FILE (or name one run on a world alone)")
    from pddpo_ray.config import Config
    from pddpo_ray.evaluate.world import evaluate_run, summary
    from pddpo_ray.journal.identity import open_folder

    run = Path(models[0]).absolute()
    with open_folder(run, journal) as reader:
        values = evaluate_run(Config.of_run(reader.recipe), run, reader)
    if as_json:
        print_json({"run": str(run), "values": values})
    else:
        print_columns([[_cell_text(cell) for cell in line] for line in summary(values)])


def _one_of(option: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise UserError(f"{option} {value}: use {' or '.join(choices)}")
    return value


def _lines(asked_set: dict[str, Any]) -> list[list[str]]:
    """One line per model: every measure with its interval, or its standard error where no bounds are stated."""
    measures: dict[str, dict[str, Any]] = asked_set["measures"]
    keys = list(dict.fromkeys(key for values in measures.values() for key in values))
    lines = [["", *keys, *(f"Elo, {name}" for name in asked_set["ratings"])]]
    for model, values in measures.items():
        cells = [_estimate(values.get(key)) for key in keys]
        cells += [_estimate(rating.get(model)) for rating in asked_set["ratings"].values()]
        lines.append([model, *cells])
    return lines


def _estimate(value: dict[str, Any] | None) -> str:
    if value is None:
        return "-"
    if value["low"] is None or value["high"] is None:
        error = value.get("standard_error")
        return _cell_text(value["value"]) + ("" if error is None else f" (error {_cell_text(error)})")
    return f"{_cell_text(value['value'])} [{_cell_text(value['low'])}, {_cell_text(value['high'])}]"


def _cell_text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
