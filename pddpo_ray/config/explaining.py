"""What every key of a recipe means, from the docstrings of the sections: one key, or the page of all of them."""

from __future__ import annotations

import difflib
import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pddpo_ray.config.recipe import Config
from pddpo_ray.config.registered import Installed, Named, SettingsOf
from pddpo_ray.errors import UserError
from pddpo_ray.registry import Extension, load, names

LABORATORY = ("world", "method")
"""Sections of worlds and compared methods."""
FIRST = (
    "algorithm", "model.reference", "model.parameters.rank", "model.dtype", "data.helpful", "data.harmless",
    "data.prompts", "data.template", "data.prompt_tokens", "data.answer_tokens", "data.prompt_count", "limits",
    "reward", "feedback.kind", "feedback.responses",
    "rounds", "beta", "dual.rho", "trainer.fit.learning_rate", "trainer.fit.epochs",
    "trainer.fit.batch_pairs", "trainer.micro_pairs", "rollout.max_tokens", "offline.pairs", "certificate.certify",
)  # fmt: skip
"""The keys that matter first."""
SYNONYMS = {
    "lora": "model.parameters.rank", "adapter": "model.parameters.rank", "peft": "model.parameters.rank",
    "batch size": "trainer.fit.batch_pairs", "epochs": "trainer.fit.epochs",
    "learning rate": "trainer.fit.learning_rate", "lr": "trainer.fit.learning_rate",
    "wandb": "report.trackers", "mlflow": "report.trackers", "tensorboard": "report.tensorboard",
    "quantisation": "model.parameters.quantise", "quantization": "model.parameters.quantise",
    "qlora": "model.parameters.quantise", "bf16": "model.dtype", "precision": "model.dtype",
    "fsdp": "trainer.engine", "deepspeed": "trainer.engine", "zero": "trainer.engine",
    "max length": "rollout.max_model_len", "context length": "rollout.max_model_len",
    "gradient accumulation": "trainer.micro_pairs", "micro batch": "trainer.micro_pairs", "gpus": "trainer.workers",
    "temperature": "policy.temperature", "dataset": "data.helpful",
}  # fmt: skip
"""What other programs call a key."""
CHANGED_BY = {
    "about": "engineer", "needs": "engineer", "algorithm": "everyone", "seed": "engineer", "rounds": "everyone",
    "beta": "everyone", "reward_max": "researcher", "data": "engineer", "prompts": "engineer", "limits": "everyone",
    "reward": "engineer", "judge": "engineer", "people": "labelling lead", "model": "engineer", "policy": "engineer",
    "feedback": "engineer", "offline": "engineer", "scorers": "engineer", "certificate": "engineer",
    "trainer": "researcher", "trainer.fit": "engineer", "trainer.stages": "engineer", "trainer.engine": "operator",
    "trainer.workers": "operator", "trainer.threads": "operator", "trainer.micro_pairs": "operator",
    "rollout": "operator", "cluster": "operator", "journal": "operator", "production": "operator",
    "report": "engineer", "report.trackers": "operator", "dual": "researcher", "explore": "researcher",
    "scorecard": "researcher", "world": "researcher", "method": "researcher",
}  # fmt: skip
"""Who would change a key, by the longest beginning of its name that stands here; the first ones: everyone."""
SHOWN = 60
"""Characters of a default that are shown."""


@dataclass(frozen=True)
class Explained:
    """One key as it stands in one section."""

    key: str
    """With dots, e.g. `dual.rule.damping`."""
    takes: str
    default: str
    """As YAML; `needed` where a recipe must state it."""
    about: str
    variant: str = ""
    """Which of a section's variants has it, e.g. `kind: newton`; empty: there is one alone."""
    section: type[BaseModel] | None = None

    @property
    def changed_by(self) -> str:
        """Who would change it: everyone, or an engineer, an operator, a labelling lead or a researcher."""
        parts = self.key.split(".")
        beginnings = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        return "everyone" if self.key in FIRST else next(CHANGED_BY[one] for one in beginnings if one in CHANGED_BY)


def every_key() -> Iterator[Explained]:
    """All keys of all variants, in the order of the sections."""
    yield from _keys_below(Config, "", "")


def explained(key: str) -> list[Explained]:
    """A key in each variant that has it, or the keys that other programs call so, or that say these words.

    Raises UserError with the nearest keys.
    """
    words = " ".join(key.lower().replace("_", " ").replace("-", " ").split())
    found = [one for one in every_key() if one.key in (key, SYNONYMS.get(words))]
    if not found:
        close = difflib.get_close_matches(words, list(SYNONYMS), 1, 0.85) if "." not in key else []
        return explained(SYNONYMS[close[0]]) if close else _with_words(key, words.split())
    return found


def first_keys() -> list[Explained]:
    """The keys that matter first."""
    every = {one.key: one for one in every_key()}
    return [every[key] for key in FIRST]


def _with_words(key: str, words: list[str]) -> list[Explained]:
    """Keys whose description has all these words. Raises UserError with the nearest keys where none has."""
    found = [one for one in every_key() if all(word in f"{one.key} {one.about}".lower().split() for word in words)]
    if "." in key or "_" in key or not found:
        keys = list(dict.fromkeys(one.key for one in every_key()))
        same = [one for one in keys if one.rpartition(".")[2] == key.rpartition(".")[2]]
        near = (same or difflib.get_close_matches(key, keys, 3, 0.6))[:6]
        raise UserError(
            f"there is no key `{key}`; " + (f"did you mean {', '.join(near)}?" if near else "`pddpo explain` lists all")
        )
    return found


def keys_of_section(key: str) -> list[Explained]:
    """The keys directly below a section; none where the key is no section."""
    depth = key.count(".") + 1
    return [one for one in every_key() if one.key.startswith(f"{key}.") and one.key.count(".") == depth]


def settings_page(*, laboratory: bool = False) -> str:
    """docs/settings.md: a line for every key; docs/settings-laboratory.md: those of worlds and compared methods."""
    title, what = ("Settings of the laboratory", "worlds") if laboratory else ("Settings", "a run")
    command = "pddpo explain world --page" if laboratory else "pddpo explain --page"
    lines = [
        f"# {title}",
        "",
        f"Every key of {what} in the words of the code: `{command}` prints this page. `pddpo explain` shows the keys",
        "that matter first, `pddpo explain WORDS` finds others. Keys that only a variant has name it in brackets.",
        "",
        "| key | takes | default | changed by | |",
        "|---|---|---|---|---|",
    ]
    alike: dict[type[BaseModel], str] = {}
    folded: list[str] = []
    by_key: dict[str, list[Explained]] = {}
    for one in every_key():
        by_key.setdefault(one.key, []).append(one)
    for key, variants in by_key.items():
        first = variants[0]
        if key.startswith(tuple(folded)) or (key.partition(".")[0] in LABORATORY) != laboratory:
            continue
        about = first.about
        if first.section is not None:
            same = alike.setdefault(first.section, key)
            if same != key:
                folded.append(f"{key}.")
                about = f"{about.removesuffix('.')}. Its keys are those of `{same}`."
        only = ", ".join(dict.fromkeys(one.variant for one in variants if one.variant))
        about += f" ({only})" if only and len(variants) < 4 else ""
        lines.append(
            f"| `{key}` | {_cell(first.takes)} | `{_cell(first.default)}` | {first.changed_by} | {_cell(about)} |"
        )
    return "\n".join(lines) + "\n"


def _keys_below(model: type[BaseModel], prefix: str, variant: str) -> Iterator[Explained]:
    below: list[tuple[str, list[type[BaseModel]], str]] = []
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        sections = _sections(field.annotation)
        yield Explained(
            key,
            "a section" if sections and get_origin(field.annotation) not in (list, tuple, dict) else _takes(field),
            _default(field),
            _one_line(field.description or (inspect.getdoc(sections[0]) if len(sections) == 1 else "") or ""),
            variant,
            sections[0] if len(sections) == 1 else None,
        )
        if sections:
            below.append((key, sections, field.discriminator if isinstance(field.discriminator, str) else ""))
    for name, field in model.model_fields.items():
        yield from _brought_settings(f"{prefix}{name}", field)
    if issubclass(model, Installed):
        yield from _settings_of(model.registry, _tag(model, "kind"), prefix.removesuffix("."), variant)
    for key, sections, tag in below:
        for section in sections:
            own = f"{tag}: {_tag(section, tag)}" if tag and len(sections) > 1 else ""
            yield from _keys_below(section, f"{key}.", own or ("" if len(sections) == 1 else _named(section)))


def _brought_settings(key: str, field: FieldInfo) -> Iterator[Explained]:
    """Settings below a mapping that holds those of names of the registry."""
    for mark in field.metadata:
        if isinstance(mark, SettingsOf):
            for name in names(mark.kind):
                yield from _settings_of(mark.kind, name, f"{key}.{name}" if mark.by_name else key, f"{name}")


def _settings_of(kind: str, name: str, key: str, variant: str) -> Iterator[Explained]:
    settings = load(kind, name, Extension).settings
    for own, field in ({} if settings is None else settings.model_fields).items():
        about = _one_line(field.description or "")
        yield Explained(f"{key}.{own}", _takes(field), _default(field), about, variant)


def _sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        inner = inner[:1]
    return [section for one in inner for section in _sections(one)]


def _takes(field: FieldInfo) -> str:
    named = [one.kind for one in field.metadata if isinstance(one, Named)]
    if named:
        return " or ".join(f"`{name}`" for name in names(named[0]))
    bounds = [text for one in field.metadata for text in [_bound(one)] if text]
    return _type(field.annotation) + (f", {' and '.join(bounds)}" if bounds else "")


def _bound(constraint: Any) -> str:
    for name, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")):
        value = getattr(constraint, name, None)
        if value is not None:
            return f"{sign} {value:g}"
    return ""


def _type(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [text for one in inner[1:] for part in (getattr(one, "metadata", None) or [one])
                  for text in [_bound(part)] if text]  # fmt: skip
        return _type(inner[0]) + (f" {' and '.join(bounds)}" if bounds else "")
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(one) for one in inner))
    if origin in (list, tuple):
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return f"mapping of names to {_type(inner[1])}"
    if annotation is type(None):
        return "null"
    plain = {str: "text", float: "number", int: "whole number", bool: "true or false", Any: "anything"}
    return plain.get(
        annotation, "a section" if _sections(annotation) else str(getattr(annotation, "__name__", annotation))
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=False)
    if value is PydanticUndefined or value is None:
        return "null" if value is None else "{}"
    if isinstance(value, tuple | list) and any(isinstance(one, BaseModel) for one in value):
        return "see below"
    if isinstance(value, BaseModel):
        tag = next((name for name in ("kind", "engine") if name in type(value).model_fields), "")
        return f"{tag}: {getattr(value, tag)}" if tag else "see below"
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    if isinstance(value, tuple | list):
        text = f"[{', '.join(map(str, value))}]"
    return (text or '""') if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _tag(section: type[BaseModel], tag: str) -> str:
    field = section.model_fields.get(tag)
    return "" if field is None else str(field.default if not field.is_required() else get_args(field.annotation)[0])


def _named(section: type[BaseModel]) -> str:
    for tag in ("kind", "engine"):
        if tag in section.model_fields:
            return f"{tag}: {_tag(section, tag)}"
    return re.sub(r"(?<!^)(?=[A-Z])", " ", section.__name__.removesuffix("Config")).lower()


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
