"""`pddpo evaluate` on models and questions that are named in Python; the questions may be rows in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.evaluate import command
from pddpo_ray.evaluate.command import Plan
from pddpo_ray.evaluate.models import Model, parse_model, policy_temperature
from pddpo_ray.evaluate.scorers import scorers_of
from pddpo_ray.evaluate.sets import EvaluationSet, read_set
from pddpo_ray.records import Decoding

Rows = Iterable[Mapping[str, Any] | str]


def evaluate_models(
    models: Sequence[str] | Mapping[str, str],
    questions: Mapping[str, str | Rows],
    out: str | Path,
    *,
    reference: str | None = None,
    benign: Collection[str] = (),
    reward: str | None = None,
    cost: str | None = None,
    each: int = 1,
    temperature: float = 1.0,
    max_tokens: int = 512,
    seed: int = 0,
) -> dict[str, Any]:
    """Several models answer the same questions from the same seeds. -> what `evaluation.json` in `out` holds

    `models` are folders, hub names or runs (`runs/a@policy-3`), under names of their own where they are a mapping.
    `questions` are by set: a file, or rows of one form, with `prompt` (text or messages), or `prompt`, `chosen` and
    `rejected`; a text is a prompt. On the sets of `benign` a refusal is a fault. `reference`, one of the models' names,
    is what divergence is measured from; by default the first. `reward` and `cost` are folders of scorers. `temperature`
    is relative to the policies' own. Answers already in `out` are reused.
    Raises UserError for what cannot be read.
    """
    chosen = _parse_models(models)
    unknown = sorted(set(benign) - set(questions))
    if unknown:
        raise UserError(f"benign: there is no set {unknown[0]!r} among the questions ({', '.join(questions)})")
    if not questions:
        raise UserError("there are no questions; give at least one set, such as {'everyday': rows}")
    plan = Plan(
        models=chosen,
        reference=chosen[0] if reference is None else _model_by_name(chosen, reference),
        sets=tuple(_set(name, source, name in benign) for name, source in questions.items()),
        policy_temperature=policy_temperature(chosen),
        decoding=Decoding(temperature=temperature, max_tokens=max_tokens),
        each=each,
        seed=seed,
    )
    return command.evaluate(
        plan, scorers_of(reward, cost), Path(out).expanduser().absolute(), title="pddpo_ray.evaluate_models"
    )


def _parse_models(models: Sequence[str] | Mapping[str, str]) -> tuple[Model, ...]:
    if isinstance(models, str) or not models:
        raise UserError("models: give a list of them, or a mapping of names to them")
    if isinstance(models, Mapping):
        return tuple(Model(name, str(source)) for name, source in models.items())
    return tuple(parse_model(str(model)) for model in models)


def _model_by_name(models: Sequence[Model], name: str) -> Model:
    for model in models:
        if model.name == name:
            return model
    raise UserError(f"reference: there is no model {name!r} ({', '.join(model.name for model in models)})")


def _set(name: str, source: str | Path | Rows, benign: bool) -> EvaluationSet:
    if isinstance(source, str | Path):
        return replace(read_set(str(source), benign=benign), name=name)
    rows = [{"prompt": row} if isinstance(row, str) else row for row in source]
    try:
        return replace(read_set(rows, benign=benign), name=name)
    except UserError as error:
        raise UserError(f"questions of {name}: {error}") from error
