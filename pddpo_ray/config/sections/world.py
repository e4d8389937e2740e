"""Worlds, whose truth is known: a text world or a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pddpo_ray.config.registered import Installed, variants
from pddpo_ray.config.sections.data import SmallModelConfig
from pddpo_ray.config.sections.section import Strict
from pddpo_ray.registry import Extension


class TextReferenceConfig(SmallModelConfig):
    """Size and pre-training of the text world's reference model."""

    steps: int = Field(240, ge=1)
    """Optimiser steps of the pre-training."""
    batch: int = Field(64, ge=1)
    """Sentences per step."""
    learning_rate: float = Field(4e-3, gt=0)
    """Peak learning rate."""
    rare: float = Field(0.012, gt=0, lt=0.1)
    """Intended probability of each rare value: 0.2 to 2 % is where exploration matters and can succeed."""


class LogLinearConfig(Strict):
    """Prior of the log-linear learner: standard deviations of its weights, of one kind against the others.

    Together they make the difference of two answers' scores as wide as the explorer's prior: its deviation is 2."""

    slots: float = Field(1.0, gt=0)
    """Of the phrase in a slot."""
    topics: float = Field(0.5, gt=0)
    """Of the phrase in a slot, where the prompt has a certain topic."""
    interactions: float = Field(0.5, gt=0)
    """Of the phrases in two slots."""


class LogitLimitConfig(Strict):
    """The paper's limit, on the mean cost, a logit. A recipe's `limits.cost.at_most` is usually the same number;
    another one moves the optimum, not the world."""

    kind: Literal["logit"] = "logit"
    """Tag of this variant."""
    at_most: float = 0.0
    """Mean cost for which the world is drawn; an answer of cost -3 is called unsafe five times in a hundred."""


class RateLimitConfig(Strict):
    """A limit on the share of unsafe answers; the world is drawn so that its optimum keeps exactly this share."""

    kind: Literal["rate"] = "rate"
    """Tag of this variant."""
    at_most: float = Field(0.05, gt=0, lt=1)
    """Allowed share of unsafe answers."""


WorldLimit = Annotated[LogitLimitConfig | RateLimitConfig, Field(discriminator="kind")]


class DrawnFamilyConfig(Strict):
    """Worlds that differ: words, order and sizes of the slots, effects and interactions, and what is rare, good or bad
    are drawn by `seed`. How rare a rare phrase is: `reference.rare`; how sharp the optimum: `beta`."""

    kind: Literal["drawn"] = "drawn"
    """Tag of this variant."""
    answers: int = Field(216, ge=100, le=100_000)
    """Answers per prompt: a product of the slots' sizes, 2 to 10 each."""
    slots: int | None = Field(None, ge=3, le=8)
    """Length of an answer in phrases; null: 3 to 6, drawn."""
    topics: int = Field(6, ge=2, le=24)
    """Jobs that prompts ask about."""
    situations: int = Field(4, ge=2, le=10)
    """Situations of each job."""
    good: int = Field(2, ge=1, le=6)
    """Rare phrases that add much reward."""
    bad: int = Field(1, ge=0, le=6)
    """Rare phrases that add reward and much more cost."""
    neutral: int = Field(1, ge=0, le=6)
    """Rare phrases that are worth what common ones are."""
    meaning: bool = False
    """Whether words mean what they say: one slot names a way to do each topic's job, which pays for that topic alone,
    and the next one's careless phrases tempt and cost."""
    limit: WorldLimit = LogitLimitConfig()
    """What the limit is about and, for a rate, its level."""
    label_noise: float = Field(0.0, ge=0, lt=0.5)
    """Share of all labels that say the opposite of what the truth drew."""
    further_costs: int = Field(0, ge=0, le=2)
    """Costs beside the first one, each with a limit that binds."""
    groups: int = Field(1, ge=1, le=4)
    """Groups of prompts, by situation, with cost effects of their own."""


class TextWorldConfig(Strict):
    """English sentences from a grammar, with a known reward and cost for every answer."""

    kind: Literal["text"] = "text"
    """Tag of this variant."""
    seed: int = Field(0, ge=0)
    """Draws the world: its effects, its calibration and its reference. `seed` of the run is another one."""
    family: DrawnFamilyConfig = DrawnFamilyConfig()
    """Which worlds the seed draws from."""
    reference: TextReferenceConfig = TextReferenceConfig()
    """The model that is trained in place of a downloaded one."""
    learner: Literal["network", "loglinear"] = "network"
    """What is trained: the reference's weights, or weights of slot and topic features on top of its probabilities (the
    log-linear twin of pddpo-lab: exact fits and draws, a run in a minute)."""
    loglinear: LogLinearConfig = LogLinearConfig()
    cache: str | None = None
    """Folder of trained references; null: `$PDDPO_CACHE`, else `~/.cache/pddpo_ray`."""


class TabularWorldConfig(Strict):
    """Finite prompts and answers; policies are tables and everything is exact."""

    kind: Literal["tabular"] = "tabular"
    """Tag of this variant."""
    name: Literal["trap", "two-limits", "random", "rare"] = "trap"
    """`trap`: the good answers are in no offline pair. `two-limits`: the same with a second cost, `privacy`. `random`:
    drawn from `seed`. `rare`: so too, and what no offline pair holds is rare under the reference."""
    path: str | None = None
    """A world file (JSON, the format of `pddpo verify --world`) in place of a named world."""
    seed: int = Field(0, ge=0)
    """Seed of a random world and of the offline pairs."""


@dataclass(frozen=True)
class WorldKind(Extension):
    """A world. Its code takes the recipe and the run's store and returns `backends.Backends`, the truth among them."""

    limits: str | None = None
    """`module:function` from a recipe to its limits on the world (`worlds.table_limits`), for a dry run."""
    texts: str | None = None
    """`module:function` from a recipe to texts of all prompts and answers and their truth, for simulated people."""


TEXT = WorldKind("pddpo_ray.backends.in_process_text:world_backends", TextWorldConfig)
TABLES = "pddpo_lab.worlds.tabular.backends"
TABULAR = WorldKind(
    f"{TABLES}:table_backends",
    TabularWorldConfig,
    limits=f"{TABLES}:limits_of_recipe",
    texts=f"{TABLES}:texts_of_recipe",
)
"""Its code is the laboratory's."""


class InstalledWorld(Installed):
    """A world of an installed package, whose policies are tables; its own settings stand beside `kind`."""

    registry, where = "worlds", "world"


if TYPE_CHECKING:
    World = TextWorldConfig | TabularWorldConfig | InstalledWorld | None
else:
    World = variants(InstalledWorld, TextWorldConfig, TabularWorldConfig, None)
