"""Where prompts and truth come from: a text world, a table, or files of real text."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from pddpo_ray.config.section import Strict


class SmallModelConfig(Strict):
    """Shape of a reference that is trained here in place of a downloaded one."""

    hidden: int = Field(64, ge=32, multiple_of=8)
    """Width of the model."""
    layers: int = Field(2, ge=1)
    """Number of layers."""
    heads: int = Field(2, ge=1)
    """Attention heads; vLLM on CPU wants at least 32 dimensions per head."""
    intermediate: int = Field(128, ge=32)
    """Width inside the feed-forward blocks."""


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

    Together they make the difference of two answers' scores as wide as `explore.prior_sd` says."""

    slots: float = Field(1.0, gt=0)
    """Of the phrase in a slot."""
    topics: float = Field(0.5, gt=0)
    """Of the phrase in a slot, where the prompt has a certain topic."""
    interactions: float = Field(0.5, gt=0)
    """Of the phrases in two slots."""


class FirstFamilyConfig(Strict):
    """The world of releases before 0.2: one grammar, the same two rare phrases good in every seed. A recipe without
    `family` means this one, so that older runs stay what they were."""

    kind: Literal["first"] = "first"
    """Tag of this variant."""


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
    family: Annotated[FirstFamilyConfig | DrawnFamilyConfig, Field(discriminator="kind")] = FirstFamilyConfig()
    """Which worlds the seed draws from."""
    reference: TextReferenceConfig = TextReferenceConfig()
    """The model that is trained in place of a downloaded one."""
    learner: Literal["network", "loglinear"] = "network"
    """What is trained: the reference's weights, or weights of slot and topic features on top of its probabilities (the
    log-linear twin: exact fits and draws, a run in a minute)."""
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


class ScratchReferenceConfig(SmallModelConfig):
    """Size and training of a reference that is made from the world's own texts."""

    vocabulary: int = Field(1024, ge=300)
    """Tokens of its byte-level tokenizer."""
    context: int = Field(192, ge=16)
    """Longest prompt and answer together, in tokens."""
    steps: int = Field(200, ge=1)
    """Optimiser steps."""
    batch: int = Field(16, ge=1)
    """Texts per step."""
    learning_rate: float = Field(4e-3, gt=0)
    """Peak learning rate."""


class NoWorldConfig(Strict):
    """Real text from files, in any format of `pddpo data`; nobody knows the truth about it."""

    kind: Literal["none"] = "none"
    """Tag of this variant."""
    helpful: list[str] = Field([])
    """Files of pairs whose `chosen` is the more helpful answer; both lists empty: the 200 HH-RLHF pairs that ship."""
    harmless: list[str] = Field([])
    """Files of pairs whose `chosen` is the less harmful answer. A row that states both labels gives both, in
    either list."""
    columns: dict[str, str] = Field({})
    """Names of fields here, and what the files of pairs or prompts call them, e.g. {prompt: ask}."""
    ignore: list[str] = Field([])
    """Fields of those files that are left out on purpose, though they hold text, or their names sound like a
    judgement."""
    prompts: list[str] = Field([])
    """Files of prompts for the rounds; empty: those of the pairs."""
    prompt_count: int = Field(48, ge=1)
    """Prompts that a run uses at most; they are drawn by seed."""
    template: str = "tokenizer-or-hh"
    """From turns to text: plain, hh, safe-rlhf, alpaca, chatml, tokenizer (the reference's own chat template),
    tokenizer:NAME (one of several), or tokenizer-or-NAME: its own, and the named one where it has none."""
    template_arguments: dict[str, Any] = Field({})
    """Arguments of the chat template, e.g. {enable_thinking: false}. They are set in the template that every version
    carries, so training, sampling, the endpoint and exports have the same."""
    prompt_tokens: int = Field(96, ge=4)
    """Longer prompts are left out."""
    answer_tokens: int = Field(96, ge=2)
    """Pairs with a longer answer are left out."""
    held_out: float = Field(0.0, ge=0, lt=1)
    """Share of the pairs' prompts that no run asks or learns from: `pddpo compare` judges the policies by them."""
    seed: int = Field(0, ge=0)
    """Draws prompts and pairs, the held-out ones too, and initialises the reference."""
    reference: ScratchReferenceConfig = ScratchReferenceConfig()
    """The model that is trained on these texts where `model.reference` names none."""
    cache: str | None = None
    """Folder of trained references; null: `$PDDPO_CACHE`, else `~/.cache/pddpo_ray`."""

    @field_validator("template_arguments")
    @classmethod
    def _names_of_arguments(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        for name in arguments:
            if not name.isidentifier() or name in ("messages", "add_generation_prompt", "bos_token", "eos_token"):
                raise ValueError(f"{name!r} is no argument that a recipe can set")
        return arguments


World = Annotated[TextWorldConfig | TabularWorldConfig | NoWorldConfig, Field(discriminator="kind")]
