"""`pddpo compare paper`: published models and ours on the paper's questions, with its evaluators, nothing trained.

The plan is the suite file `paper`; `NAME=SOURCE` on the command line says where a model is: a folder, a hub name, or
the run that trained it. Our models that nobody named are left out, with the command that would train them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import AliasChoices, Field, ValidationError, model_validator

from pddpo_lab.compare.suite import PAPER, SUITES
from pddpo_ray.config import Strict
from pddpo_ray.config.document import parse_value, read_document
from pddpo_ray.errors import UserError
from pddpo_ray.evaluate.command import Plan, Scorers, Tell, evaluate
from pddpo_ray.evaluate.models import Model
from pddpo_ray.evaluate.scorers import fingerprint, judges_at, lazy_scorer
from pddpo_ray.evaluate.sets import read_set
from pddpo_ray.records import Decoding


class ModelEntry(Strict):
    """A model: where it is, or how one of ours is trained."""

    source: str | None = Field(None, validation_alias=AliasChoices("source", "place"))
    """A folder, a hub name or a run; files of version 0.1 call it `place`."""
    recipe: str | None = None
    set: list[str] = Field(default_factory=list)
    shown: list[str] = Field(default_factory=list)
    """Figures and tables of the paper that have it."""


class PaperEntry(Strict):
    """The suite file."""

    about: str
    reference: str
    models: dict[str, ModelEntry]
    settings: dict[str, str] = Field(default_factory=dict)
    """Columns of the paper's settings tables, and the recipe that has their values."""
    reward_model: str
    cost_model: str
    judge: str | None = None
    """URL of an OpenAI-compatible endpoint that compares answers with the reference's, in both orders; null: none."""
    judge_model: str = ""
    """Model that the judge's endpoint is asked for."""
    sets: list[str] = Field(min_length=1)
    benign: list[str] = Field(default_factory=list)
    template: str = "safe-rlhf"
    questions: int | None = Field(None, ge=1)
    """At most this number of questions per set; null: all."""
    max_tokens: int = Field(384, ge=1)
    max_model_len: int = Field(512, ge=8)
    temperature: float = Field(1.0, ge=0)
    """The paper does not state its decoding."""
    engine: Literal["transformers", "vllm"] = "transformers"
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    elo: Literal["likelihood", "iterative"] = "likelihood"
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def reference_is_a_model(self) -> Self:
        if self.reference not in self.models:
            raise ValueError(f"reference {self.reference} is none of the models")
        return self


@dataclass(frozen=True)
class Missing:
    """One of ours without a run, and how to make one."""

    name: str
    command: str


def load_paper(given: Sequence[str] = (), path: Path = SUITES / f"{PAPER}.yaml") -> PaperEntry:
    """The plan with what the command line says: NAME=SOURCE for a model, KEY=VALUE for anything else. UserError."""
    tree, _ = read_document(path, path.name)
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise UserError(f"{text}: write NAME=SOURCE for a model, or KEY=VALUE, e.g. questions=100")
        if key in tree["models"]:
            entry = {name: said for name, said in tree["models"][key].items() if name != "place"}
            tree["models"][key] = entry | {"source": value}
        elif key in PaperEntry.model_fields and key not in ("about", "models", "settings"):
            several = key in ("sets", "benign")
            tree[key] = value.split(",") if several else parse_value(value, f"`{text}`")
        else:
            tree["models"][key] = {"source": value}
    try:
        return PaperEntry.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def missing_models(paper: PaperEntry) -> list[Missing]:
    """Ours that nobody has said a source of."""
    return [Missing(name, _training(paper, name)) for name, entry in paper.models.items() if entry.source is None]


def compare_paper(
    paper: PaperEntry, out: Path, tell: Tell, command: str = "", scorers: Scorers | None = None
) -> dict[str, Any]:
    """Evaluates all models whose source is known; writes what `pddpo evaluate` writes into `out`."""
    there = {name: Model(name, entry.source) for name, entry in paper.models.items() if entry.source is not None}
    if paper.reference not in there:
        raise UserError(f"the reference {paper.reference} has no source: add {paper.reference}=PATH")
    missing = missing_models(paper)
    for item in missing:
        tell(f"{item.name}: left out; train it with `{item.command}`, then add {item.name}=RUN")
    asked = [*paper.sets, *paper.benign]
    plan = Plan(
        models=tuple(there.values()),
        reference=there[paper.reference],
        sets=tuple(
            read_set(name, limit=paper.questions, benign=name in paper.benign, seed=paper.seed) for name in asked
        ),
        template=paper.template,
        decoding=Decoding(temperature=paper.temperature, max_tokens=paper.max_tokens),
        seed=paper.seed,
        engine=paper.engine,
        dtype=paper.dtype,
        max_model_len=paper.max_model_len,
        elo=paper.elo,
    )
    return evaluate(
        plan,
        scorers or scorers_of(paper),
        out,
        tell,
        title="pddpo compare paper",
        commands=[*([command] if command else []), *_trainings(paper)],
        notes=[paper.about, *_notes(missing)],
    )


def scorers_of(paper: PaperEntry) -> Scorers:
    """The plan's reward and cost model, loaded when they are first asked, and its judge of both axes if it has one."""
    judge = (paper.judge, paper.judge_model) if paper.judge else ()
    return Scorers(
        reward=lazy_scorer(paper.reward_model, paper.dtype),
        cost=lazy_scorer(paper.cost_model, paper.dtype),
        judges=judges_at(paper.judge, paper.judge_model) if paper.judge else (),
        fingerprint=fingerprint((paper.reward_model, paper.cost_model), *judge, paper.dtype),
    )


def planned(paper: PaperEntry) -> list[tuple[str, str, str]]:
    """What `--dry-run` prints: where the paper has a model, its name, and its source or the command that trains it;
    then what prints the settings of each column of its settings tables."""
    shown = {name: entry.shown or ["not in the paper"] for name, entry in paper.models.items()}
    order = {place: None for name in paper.models for place in shown[name]}
    models = [
        (place, name, _training(paper, name) if entry.source is None else entry.source)
        for place in order
        for name, entry in paper.models.items()
        if place in shown[name]
    ]
    return [
        *models,
        *(("settings tables", name, f"pddpo recipes {recipe}") for name, recipe in paper.settings.items()),
    ]


def _notes(missing: Sequence[Missing]) -> list[str]:
    return [f"Left out, for nobody named a run: {', '.join(item.name for item in missing)}."] if missing else []


def _trainings(paper: PaperEntry) -> list[str]:
    return [_training(paper, name) for name, entry in paper.models.items() if entry.recipe is not None]


def _training(paper: PaperEntry, name: str) -> str:
    """The command that trains one of ours from the suite's reference."""
    entry, reference = paper.models[name], paper.models[paper.reference].source
    settings = " ".join(shlex.quote(text) for text in (f"model.reference={reference}", *entry.set))
    return f"pddpo train {entry.recipe} {settings} --run runs/{name}"
