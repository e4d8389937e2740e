"""A suite: which runs are compared, and in which tables and pictures.

A suite file names *arms*. An arm is one way to run a recipe; every arm runs once per seed. Variants give some of the
arms again with other settings (`sacpo` becomes `sacpo.equal`), tables say which arms stand together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from pddpo_ray.config import Config, Strict, load
from pddpo_ray.config.document import read_document
from pddpo_ray.errors import UserError

SUITES = Path(__file__).resolve().parent.parent / "suites"
PAPER = "paper"
"""Another kind of file: `compare.paper` reads it."""
NAME = r"^[a-z0-9-]+$"


class ArmEntry(Strict):
    """One way to run a recipe."""

    label: str
    """How tables and pictures call it."""
    recipe: str
    """A shipped recipe or the path of a recipe file."""
    set: list[str] = Field(default_factory=list)
    """Overrides, after those of the suite."""


class VariantEntry(Strict):
    """The same arms with further settings; each is called `<arm>.<variant>`."""

    arms: list[str]
    set: list[str] = Field(default_factory=list)
    pairs_of: str | None = None
    """Adds as many offline pairs of the whole reference as this online arm asks for in all its rounds."""


class MethodsTable(Strict):
    """Arms side by side: a table with one row each, and a plane of harmlessness and helpfulness."""

    kind: Literal["methods"] = "methods"
    key: str = Field(pattern=NAME)
    title: str
    about: str = ""
    arms: list[str]


class SweepTable(Strict):
    """One setting of one arm varied: a row per value, and a curve. Its arms are called `<of>.<key>-<value>`."""

    kind: Literal["sweep"]
    key: str = Field(pattern=NAME)
    title: str
    about: str = ""
    of: str
    """The arm that is varied."""
    setting: str
    """The setting, e.g. limits.cost.at_most."""
    at: list[float] = Field(min_length=2)

    @property
    def arms(self) -> list[str]:
        return [f"{self.of}.{self.key}-{value:g}" for value in self.at]


Table = Annotated[MethodsTable | SweepTable, Field(discriminator="kind")]


class HeldOutEntry(Strict):
    """How policies on real text are judged (`compare.judging`)."""

    questions: int = Field(64, ge=2)
    """At most this number of held-out prompts."""
    answers: int = Field(1, ge=1)
    """Answers to each."""
    reward_model: str | None = None
    """The judge of helpfulness, in a folder; null: trained on the pairs of the held-out prompts."""
    cost_model: str | None = None
    """The judge of harm, likewise."""


class SuiteEntry(Strict):
    """A suite file."""

    about: str
    seeds: list[int] = Field(default_factory=lambda: [0, 1, 2])
    seed_keys: list[str] = Field(default_factory=lambda: ["seed"])
    """Settings that take the seed, e.g. seed and world.seed."""
    set: list[str] = Field(default_factory=list)
    """Overrides for every arm."""
    arms: dict[str, ArmEntry]
    variants: dict[str, VariantEntry] = Field(default_factory=dict)
    tables: list[Table]
    dynamics: list[str] = Field(default_factory=list)
    """Arms whose multiplier is drawn round by round."""
    held_out: HeldOutEntry = Field(default_factory=HeldOutEntry)
    """Questions to the policies, where there is no world."""

    @model_validator(mode="after")
    def names_exist(self) -> Self:
        named = [(f"variant {name}", arm) for name, entry in self.variants.items() for arm in entry.arms]
        named += [
            (f"variant {name}", entry.pairs_of) for name, entry in self.variants.items() if entry.pairs_of is not None
        ]
        named += [(f"table {table.key}", table.of) for table in self.tables if isinstance(table, SweepTable)]
        for where, arm in named:
            if arm not in self.arms:
                raise ValueError(f"{where} names the arm {arm}, which the suite does not have")
        known = set(self.arms) | {f"{arm}.{name}" for name, entry in self.variants.items() for arm in entry.arms}
        named = [("dynamics", arm) for arm in self.dynamics]
        named += [
            (f"table {table.key}", arm)
            for table in self.tables
            if isinstance(table, MethodsTable)
            for arm in table.arms
        ]
        for where, arm in named:
            if arm not in known:
                raise ValueError(f"{where} names the arm {arm}, which the suite does not have")
        if len({table.key for table in self.tables}) != len(self.tables):
            raise ValueError("two tables have the same key")
        return self


@dataclass(frozen=True)
class Arm:
    """One way to run; the same for every seed."""

    name: str
    label: str
    recipe: str
    overrides: tuple[str, ...]

    def config(self, seed: int, seed_keys: Sequence[str], more: Sequence[str] = ()) -> Config:
        """Its recipe for one seed. Each arm is one process's work, so it never starts groups of its own."""
        seeds = [f"{key}={seed}" for key in seed_keys]
        quiet = ["cluster={mode: in-process}", "offline.compare_rounds=0", "report.tensorboard=false"]
        return load(self.recipe, [*quiet, *self.overrides, *more, *seeds])


@dataclass(frozen=True)
class Suite:
    """A suite with its variants spelt out."""

    name: str
    about: str
    seeds: tuple[int, ...]
    seed_keys: tuple[str, ...]
    arms: Mapping[str, Arm]
    tables: tuple[Table, ...]
    dynamics: tuple[str, ...]
    more: tuple[str, ...] = ()
    """Overrides of the command line, after all others."""
    held_out: HeldOutEntry = field(default_factory=HeldOutEntry)

    def config(self, arm: str, seed: int) -> Config:
        return self.arms[arm].config(seed, self.seed_keys, self.more)


def suite_names() -> list[str]:
    """Names of the shipped suites."""
    return sorted(path.stem for path in SUITES.glob("*.yaml") if path.stem != PAPER)


def load_suite(
    suite: str, *, seeds: Sequence[int] = (), only: Sequence[str] = (), overrides: Sequence[str] = ()
) -> Suite:
    """A shipped suite by name, or a file. `only` keeps some arms and what is left of the tables.

    Raises UserError for a suite that is not one, and for an arm whose recipe does not load.
    """
    path = SUITES / f"{suite}.yaml" if suite in suite_names() else Path(suite)
    if not path.is_file():
        raise UserError(f"there is no suite `{suite}`: name a file or one of {', '.join(suite_names())}")
    tree, _ = read_document(path, path.name)
    try:
        entry = SuiteEntry.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path.name}: {where + ': ' if where else ''}{first['msg']}") from error
    arms = _arms(entry)
    _demand_known(only, arms)
    kept = {name: arm for name, arm in arms.items() if not only or name in only}
    loaded = Suite(
        name=path.stem,
        about=entry.about,
        seeds=tuple(seeds) or tuple(entry.seeds),
        seed_keys=tuple(entry.seed_keys),
        arms=kept,
        tables=tuple(shortened for table in entry.tables if (shortened := _kept(table, kept)) is not None),
        dynamics=tuple(name for name in entry.dynamics if name in kept),
        more=tuple(overrides),
        held_out=entry.held_out,
    )
    for name in kept:
        loaded.config(name, loaded.seeds[0])
    return loaded


def _arms(entry: SuiteEntry) -> dict[str, Arm]:
    arms = {name: Arm(name, arm.label, arm.recipe, (*entry.set, *arm.set)) for name, arm in entry.arms.items()}
    for variant, settings in entry.variants.items():
        extra = [] if settings.pairs_of is None else [f"offline.extra={_pairs_asked(arms[settings.pairs_of], entry)}"]
        for name in settings.arms:
            base = arms[name]
            full = f"{name}.{variant}"
            arms[full] = Arm(full, base.label, base.recipe, (*base.overrides, *extra, *settings.set))
    for table in entry.tables:
        if isinstance(table, SweepTable):
            base = arms[table.of]
            for full, value in zip(table.arms, table.at, strict=True):
                label = f"{base.label}, {table.setting.rpartition('.')[2]} {value:g}"
                arms[full] = Arm(full, label, base.recipe, (*base.overrides, f"{table.setting}={value:g}"))
    return arms


def _pairs_asked(arm: Arm, entry: SuiteEntry) -> int:
    """Pairs that an online arm asks for in all its rounds."""
    config = arm.config(entry.seeds[0], entry.seed_keys)
    return config.rounds * config.pairs_per_round


def _demand_known(only: Sequence[str], arms: Mapping[str, Arm]) -> None:
    for name in only:
        if name not in arms:
            raise UserError(f"--only {name}: the suite has no such arm; it has {', '.join(arms)}")


def _kept(table: Table, arms: Mapping[str, Arm]) -> Table | None:
    """The table without arms that are left out; None if nothing is left to show."""
    if isinstance(table, SweepTable):
        at = [value for name, value in zip(table.arms, table.at, strict=True) if name in arms]
        return table.model_copy(update={"at": at}) if at else None
    kept = [name for name in table.arms if name in arms]
    return table.model_copy(update={"arms": kept}) if kept else None
