"""Explains recipe keys from the sections' docstrings: one key, or a page of all keys."""

from __future__ import annotations

import difflib
import inspect
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
"""Who changes a key, by the longest prefix listed here; the keys in `FIRST`: everyone."""
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
        starts = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        return "everyone" if self.key in FIRST else next(CHANGED_BY[start] for start in starts if start in CHANGED_BY)


def every_key() -> Iterator[Explained]:
    """All keys of all variants, in the order of the sections."""
    yield from _keys_below(Config, "", "")


def explained(key: str) -> list[Explained]:
    """The key in each variant that has it, else the one a synonym names, else keys by these words.

    Raises UserError with the nearest keys.
    """
    words = " ".join(key.lower().replace("_", " ").replace("-", " ").split())
    entries = [entry for entry in every_key() if entry.key in (key, SYNONYMS.get(words))]
    if not entries:
        close = difflib.get_close_matches(words, list(SYNONYMS), 1, 0.85) if "." not in key else []
        return explained(SYNONYMS[close[0]]) if close else _with_words(key, words.split())
    return entries


def first_keys() -> list[Explained]:
    """The keys that matter first."""
    by_key = {entry.key: entry for entry in every_key()}
    return [by_key[key] for key in FIRST]


def _with_words(key: str, words: list[str]) -> list[Explained]:
    """Keys whose description has all these words. Raises UserError with the nearest keys where none has."""
    entries = [
        entry for entry in every_key() if all(word in f"{entry.key} {entry.about}".lower().split() for word in words)
    ]
    if "." in key or "_" in key or not entries:
        keys = list(dict.fromkeys(entry.key for entry in every_key()))
        same = [name for name in keys if name.rpartition(".")[2] == key.rpartition(".")[2]]
        near = (same or difflib.get_close_matches(key, keys, 3, 0.6))[:6]
        raise UserError(
            f"there is no key `{key}`; " + (f"did you mean {', '.join(near)}?" if near else "`pddpo explain` lists all")
        )
    return entries


def keys_of_section(key: str) -> list[Explained]:
    """The keys directly below a section; none where the key is no section."""
    depth = key.count(".") + 1
    return [entry for entry in every_key() if entry.key.startswith(f"{key}.") and entry.key.count(".") == depth]


def settings_page(*, laboratory: bool = False) -> str:
    """docs/settings.md: a line for every key; docs/settings-laboratory.md: those of worlds and compared methods."""
    title, topic = ("Settings of the laboratory", "worlds") if laboratory else ("Settings", "a run")
    command = "pddpo explain world --page" if laboratory else "pddpo explain --page"
    lines = [
        f"# {title}",
        "",
        f"Every key of {topic} in the words of the code: `{command}` prints this page. `pddpo explain` shows the keys",
        "that matter first, `pddpo explain WORDS` finds others. Keys that only a variant has name it in brackets.",
        "",
        "| key | takes | default | changed by | |",
        "|---|---|---|---|---|",
    ]
    key_by_section: dict[type[BaseModel], str] = {}
    prefixes: list[str] = []
    by_key: dict[str, list[Explained]] = {}
    for entry in every_key():
        by_key.setdefault(entry.key, []).append(entry)
    for key, variants in by_key.items():
        first = variants[0]
        if key.startswith(tuple(prefixes)) or (key.partition(".")[0] in LABORATORY) != laboratory:
            continue
        text = first.about
        if first.section is not None:
            first_key = key_by_section.setdefault(first.section, key)
            if first_key != key:
                prefixes.append(f"{key}.")
                text = f"{text.removesuffix('.')}. Its keys are those of `{first_key}`."
        tag_text = ", ".join(dict.fromkeys(entry.variant for entry in variants if entry.variant))
        text += f" ({tag_text})" if tag_text and len(variants) < 4 else ""
        lines.append(
            f"| `{key}` | {_cell(first.takes)} | `{_cell(first.default)}` | {first.changed_by} | {_cell(text)} |"
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
            tag_text = f"{tag}: {_tag(section, tag)}" if tag and len(sections) > 1 else ""
            yield from _keys_below(section, f"{key}.", tag_text)


def _brought_settings(key: str, field: FieldInfo) -> Iterator[Explained]:
    """Keys below a mapping whose settings a registry name defines."""
    for mark in field.metadata:
        if isinstance(mark, SettingsOf):
            for name in names(mark.kind):
                yield from _settings_of(mark.kind, name, f"{key}.{name}" if mark.by_name else key, f"{name}")


def _settings_of(kind: str, name: str, key: str, variant: str) -> Iterator[Explained]:
    settings = load(kind, name, Extension).settings
    for setting, field in ({} if settings is None else settings.model_fields).items():
        text = _one_line(field.description or "")
        yield Explained(f"{key}.{setting}", _takes(field), _default(field), text, variant)


def _sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        inner = inner[:1]
    return [section for argument in inner for section in _sections(argument)]


def _takes(field: FieldInfo) -> str:
    kinds = [mark.kind for mark in field.metadata if isinstance(mark, Named)]
    if kinds:
        return " or ".join(f"`{name}`" for name in names(kinds[0]))
    bounds = [text for mark in field.metadata for text in [_bound(mark)] if text]
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
        bounds = [text for mark in inner[1:] for part in (getattr(mark, "metadata", None) or [mark])
                  for text in [_bound(part)] if text]  # fmt: skip
        return _type(inner[0]) + (f" {' and '.join(bounds)}" if bounds else "")
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(member) for member in inner))
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
    if isinstance(value, tuple | list) and any(isinstance(item, BaseModel) for item in value):
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


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
