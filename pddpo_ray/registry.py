"""Names in a recipe and what they stand for: what ships and what installed packages bring, found in one way.

    bonus = load("bonuses", "elliptical", Bonus)       the record behind a name
    make = code_of("bonuses", "elliptical", Bonus)     the code that the record names

An installed package brings a name with an entry point of the group `pddpo_ray.KIND`; what ships stands in SHIPPED in
the same form, `module:name`, and is loaded by the same call. Nothing is loaded before a recipe uses its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pddpo_ray.errors import UserError, missing_extra, nearest, nearest_or_all

KINDS: Mapping[str, str] = {
    "methods": "method",
    "worlds": "world",
    "learners": "learner",
    "bonuses": "bonus",
    "dual_rules": "dual rule",
    "sources": "source",
    "feedback": "feedback kind",
    "rules": "rule",
    "trackers": "tracker",
    "labellers": "labeller",
    "commands": "command",
}
"""What can be extended: the end of an entry point's group, and what one of it is called."""


def _in(module: str, *names: str) -> dict[str, str]:
    """Shipped names of one module: `o-pd-dpo` is its O_PD_DPO."""
    return {name: f"{module}:{name.upper().replace('-', '_')}" for name in names}


SHIPPED: Mapping[str, Mapping[str, str]] = {
    "methods": _in(
        "pddpo_ray.config.sections.method",
        "o-pd-dpo", "pd-dpo", "pd-dpo-fixed", "pd-dpo-adalag", "dpo-harmless", "dpo-helpful",
    ),
    "worlds": _in("pddpo_ray.config.sections.world", "text", "tabular"),
    "learners": {},
    "bonuses": _in(
        "pddpo_ray.config.sections.explore",
        "elliptical", "theorem", "greedy", "proposals", "off",
    ),
    "dual_rules": _in("pddpo_ray.config.sections.dual", "projected", "anytime", "newton", "log", "stepwise", "fixed"),
    "sources": _in(
        "pddpo_ray.limits.source_kinds",
        "rule", "regex", "json_schema", "function", "classifier", "score_model", "judge", "endpoint", "grader",
        "people", "world", "model",
    ),
    "feedback": _in("pddpo_ray.config.sections.feedback", "world", "people", "mixed", "model", "judge"),
    "rules": _in(
        "pddpo_ray.limits.rules",
        "tokens", "words", "characters", "sentences", "refusal", "empty", "reading_grade", "repeats",
    ),
    "trackers": _in("pddpo_ray.config.sections.report", "tensorboard", "wandb", "mlflow"),
    "labellers": {"people": "pddpo_ray.annotation:PEOPLE"},
    "commands": {
        "annotate": "deploy.annotation.command:annotate",
        "annotations": "pddpo_ray.annotation.commands.annotations:app",
        "serve": "deploy.serving.command:serve",
        "export": "pddpo_ray.serving.commands.export:export",
        "chat": "pddpo_ray.serving.commands.chat:chat",
        "submit": "deploy.jobs.commands:submit",
        "stop": "deploy.jobs.commands:stop",
        "logs": "deploy.jobs.commands:logs",
    },
}  # fmt: skip
"""Entry points of this project itself. They stand here and not in its metadata, which a checkout may have of an older
version."""


LAB: Mapping[str, tuple[str, ...]] = {
    "commands": ("verify", "compare", "score", "simulate-annotators", "world"),
    "methods": (
        "o-pd-dpo-paper",
        "safe-dpo",
        "sacpo",
        "p-sacpo",
        "mocan",
        "pecan",
        "c-dpo",
        "caid",
        "safe-rlhf",
        "c-grpo",
    ),
    "learners": ("loglinear",),
    "bonuses": ("simhash", "thompson"),
}
"""What the laboratory brings, which a checkout has in lab/ and this package does not hold; for messages without it."""
OF_LAB = "of pddpo-lab, which is not installed; `make setup` in a checkout installs it"
NO_LAB = f"{', '.join(LAB['commands'])}: commands {OF_LAB}"


class UnknownName(ValueError):
    """There is nothing of that name; the message has the nearest one."""


@dataclass(frozen=True)
class Extension:
    """What an entry point is: where its code is, and what may be set."""

    code: str
    """`module:name` of what does the work, imported when a run uses it."""
    settings: type[BaseModel] | None = None
    """The class that checks its settings; None: it has none."""


Kept = TypeVar("Kept")


def names(kind: str) -> list[str]:
    """Every name of a kind, those that ship first. Loads nothing."""
    return list(dict.fromkeys([*SHIPPED[kind], *(entry.name for entry in _entries_of_packages(kind))]))


def installed_names(kind: str) -> list[str]:
    """Names of a kind that installed packages alone bring."""
    return [name for name in names(kind) if name not in SHIPPED[kind]]


def entry_of(kind: str, name: str) -> EntryPoint:
    """The entry point of that name, not loaded.

    Raises UnknownName with the nearest name, UserError where two packages, or one and this project, have the name.
    """
    shipped = SHIPPED[kind].get(name)
    shipped_entries = [] if shipped is None else [EntryPoint(name, shipped, f"pddpo_ray.{kind}")]
    brought = [entry for entry in _entries_of_packages(kind) if entry.name == name]
    if not shipped_entries and not brought:
        if name in LAB.get(kind, ()):
            raise UnknownName(f"{name} is a {KINDS[kind]} {OF_LAB}")
        every = names(kind)
        near = nearest(name, every, f"; {KINDS[kind]}s are {', '.join(every)}")
        raise UnknownName(f"there is no {KINDS[kind]} `{name}`{near}")
    if len(shipped_entries) + len(brought) > 1:
        packages = " and ".join([*(["pddpo-ray"] if shipped_entries else []), *map(_package, brought)])
        raise UserError(f"{packages} both bring a {KINDS[kind]} `{name}`: uninstall one of the packages")
    return (shipped_entries + brought)[0]


def load(kind: str, name: str, base: type[Kept]) -> Kept:
    """The record behind a name. Raises UnknownName, and UserError where its package is broken."""
    entry = entry_of(kind, name)
    record = _load_reference(kind, entry, entry)
    if not isinstance(record, base):
        expected = f"{base.__module__}.{base.__qualname__}"
        raise UserError(f"{_describe(kind, entry)}, which is no {expected}, but {type(record).__name__}")
    return record


def code_of(kind: str, name: str, part: str = "code") -> Any:
    """What the record of a name calls its code, or names as another part; None where it has no such part.

    Raises as `load` does.
    """
    code: str | None = getattr(load(kind, name, Extension), part)
    if code is None:
        return None
    return _load_reference(kind, entry_of(kind, name), EntryPoint(name, code, f"pddpo_ray.{kind}"))


def command(name: str) -> Any:
    """A function or a Typer that an installed package brings as a command. Raises UserError where none does."""
    if name not in names("commands"):
        raise UserError(NO_LAB if name in LAB["commands"] else f"there is no command `{name}`")
    return load("commands", name, object)


def checked(kind: str, name: str, options: Mapping[str, Any], where: str) -> BaseModel | None:
    """Settings of what a name stands for, checked by its own class; None where it has none.

    Raises ValueError that names the key, UnknownName, and UserError where the package is broken.
    """
    settings = load(kind, name, Extension).settings
    if settings is None:
        if options:
            raise ValueError(f"{where}: {KINDS[kind]} {name} has no settings; leave out {', '.join(options)}")
        return None
    try:
        return settings.model_validate(dict(options))
    except ValidationError as error:
        raise ValueError(_first_problem(error, settings, where)) from error


def resolved(kind: str, name: str, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The same as plain values, defaults among them."""
    settings = checked(kind, name, options, where)
    return {} if settings is None else settings.model_dump(mode="json")


def recipe_folders() -> list[Path]:
    """Folders of recipes that installed packages bring: an entry point of `pddpo_ray.recipes` names a package.

    Raises UserError where its package is broken.
    """
    folders: list[Path] = []
    for entry in _entries_of_packages("recipes"):
        try:
            folders += map(Path, entry.load().__path__)
        except ImportError as error:
            raise UserError(
                f"{_package(entry)} brings recipes and cannot be imported ({error}): reinstall it"
            ) from error
    return folders


def package_of(kind: str, name: str) -> str | None:
    """Name and version of the package that brings a name, e.g. `pddpo-politeness 0.1.0`; None: it ships."""
    return None if name in SHIPPED[kind] else _package(entry_of(kind, name))


def installed() -> Iterator[tuple[str, str, str]]:
    """(kind, name, package with version) of everything that installed packages bring. Loads nothing."""
    for kind in KINDS:
        for entry in _entries_of_packages(kind):
            yield kind, entry.name, _package(entry)


@cache
def _entries_of_packages(kind: str) -> tuple[EntryPoint, ...]:
    """Entry points of installed packages. One that is on the path twice counts once."""
    entries = {(entry.name, entry.value, _package(entry)): entry for entry in entry_points(group=f"pddpo_ray.{kind}")}
    return tuple(entries.values())


def _load_reference(kind: str, entry: EntryPoint, reference: EntryPoint) -> Any:
    """What `reference` points to; failures name the package that brought `entry`."""
    if entry.name in SHIPPED[kind]:
        try:
            return reference.load()
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "pddpo_lab":
                raise
            raise UserError(f"{entry.name} is a {KINDS[kind]} {OF_LAB}") from error
    try:
        return reference.load()
    except Exception as error:
        advice = missing_extra(error.name) if isinstance(error, ModuleNotFoundError) else None
        where = "" if reference is entry else f", whose code {reference.value}"
        link = "" if where else ", which"
        why = advice or f"{type(error).__name__}: {error}"
        raise UserError(f"{_describe(kind, entry)}{where}{link} cannot be loaded: {why}") from error


def _describe(kind: str, entry: EntryPoint) -> str:
    return f"{_package(entry)} brings the {KINDS[kind]} `{entry.name}` as {entry.value}"


def _package(entry: EntryPoint) -> str:
    return "an unnamed package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _first_problem(error: ValidationError, settings: type[BaseModel], where: str) -> str:
    first = error.errors()[0]
    key = ".".join([where, *map(str, first["loc"])])
    if first["type"] == "extra_forbidden":
        return f"unknown key `{key}`{nearest_or_all(str(first['loc'][-1]), list(settings.model_fields))}"
    return f"`{key}`: {first['msg'][:1].lower()}{first['msg'][1:]}, got {first['input']!r}"
