"""Reward and cost models: stored ones, and how others are trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from pddpo_ray.config.sections.section import Strict
from pddpo_ray.config.sections.trainer import FitConfig, fit_keys, fit_with


class ScoreScale(Strict):
    """What a stored reward or cost model reads, and its score: scale * output + shift."""

    template: str | None = None
    """tokens, safe-rlhf, chat, pair, or a text with {prompt} and {answer}; null: what the model was made with."""
    label: str | None = None
    """Label of a classifier whose log-odds are the score; null: its only output, or the second of two."""
    scale: float = 1.0
    """A harmlessness model is a cost at scale -1."""
    shift: float = 0.0
    """Moves the zero of a cost."""


class ScorerConfig(ScoreScale):
    """How a stored reward or cost model is read."""

    max_tokens: int | None = Field(None, ge=8)
    """Longer texts lose their beginning; null: the model's own limit."""
    batch: int | None = Field(None, ge=1)
    """Texts per forward pass; null: as many tokens as suit the device."""


class StoredScorerConfig(ScoreScale):
    """A reward or cost model in a folder or on the hub; the folder alone stands for `{path: FOLDER}`."""

    path: str
    """Folder with config.json, *.safetensors and tokenizer, or a hub name owner/model."""

    @model_validator(mode="before")
    @classmethod
    def folder_alone(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value

    @property
    def read(self) -> ScorerConfig:
        """Up to the model's own limit, as many tokens in a pass as suit the device."""
        return ScorerConfig(**self.model_dump(exclude={"path"}))


class ScorerWeights(Strict):
    """Which weights of a reward or cost model are trained, and who says where its zero is."""

    parameters: Literal["head", "lora", "full"] = "head"
    """head: the base stays as it is, and a head on its last hidden state is fitted. lora: low-rank adapters too, merged
    at the end. full: all weights."""
    calibration: float = Field(0.0, ge=0, lt=1)
    """Share of the prompts on which scale and zero are set; the head's weight decay is chosen there too."""


class ScorerFit(ScorerWeights):
    """How a reward or cost model is fitted, in a run and by `pddpo scorer train`."""

    rank: int = Field(16, ge=1)
    """Rank of the adapters."""
    micro: int | None = Field(None, ge=1)
    """Rows per forward pass; null: a whole step's. Changes memory, not results."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU where there is one."""
    checkpoint_steps: int = Field(20, ge=1)
    """Optimiser steps between checkpoints."""


FIT: Mapping[str, Any] = {"steps": 400, "learning_rate": 2e-3, "batch_pairs": 64}
"""How a score model with few parameters learns 3,000 pairs; a large one wants `scorers.fit`."""


class ScorerTrainingConfig(ScorerWeights):
    """Reward and cost models that are trained before the first round, starting from the reference."""

    parameters: Literal["head", "lora", "full"] = "full"
    """head: the reference stays as it is, and a head on its last hidden state is fitted. lora: low-rank adapters too,
    merged at the end. full: all weights."""
    pairs: int = Field(3000, ge=8)
    """Pairs of the reference's answers that are labelled for it, on worlds; elsewhere the offline pairs are taken."""
    temperature: float = Field(1.5, gt=0)
    """Temperature of those answers: above 1 they cover more than the policy will say at first."""
    fit: dict[str, Any] = Field({})
    """What a fit with lora or full has in place of {steps: 400, learning_rate: 0.002, batch_pairs: 64}, by the keys of
    `trainer.fit`; a head is fitted to its optimum."""
    held_out: float = Field(0.1, ge=0, lt=1)
    """Share of the pairs that is kept to see how often the models are right: of whole prompts where pairs come from
    files, of pairs where the run drew them."""
    at_chance: Literal["hold", "stop"] = "hold"
    """A cost model that is not better than chance on labels that it did not learn from (95 % interval). hold: the
    multiplier stays where it is, and every round says so. stop: the run ends before round 1; for a reward model too."""
    clip_share: float = Field(0.1, ge=0, lt=1)
    """Share of the answers before round 1 whose cost may lie at or beyond `dual.cost_max`, under labels that estimate
    a logit; with more the run stops and names the value to set."""

    @field_validator("fit")
    @classmethod
    def fit_is_one(cls, fit: dict[str, Any]) -> dict[str, Any]:
        """Raises ValueError for what no fit has."""
        return fit_keys(fit)

    @property
    def optimiser(self) -> FitConfig:
        """The fit with what is given."""
        return fit_with(FIT, self.fit)

    @property
    def ways(self) -> ScorerFit:
        """Adapters of rank 16; on a GPU where there is one, a step's rows at once, a checkpoint every 20 steps."""
        return ScorerFit(parameters=self.parameters, calibration=self.calibration)


class ScorerJob(ScorerFit):
    """A reward or cost model to be trained from files (`pddpo scorer train`)."""

    kind: Literal["reward", "cost"]
    """What is learned: which answer is more helpful, or which is more harmful and whether one is unsafe."""
    files: tuple[str, ...] = Field(min_length=1)
    """Pairs, and for a cost single answers that are called safe or unsafe, in any format of `pddpo data`."""
    base: str
    """Folder or hub name of the language model that it starts as."""
    rows: int | None = Field(None, ge=8)
    """At most this number of rows of the files, drawn by seed; null: all."""
    means: Literal["helpful", "harmless", "both"] | None = None
    """What `chosen` stands for where the format does not tell; null: helpful for a reward, harmless for a cost."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Names of fields here, and those that the files have for them, as `pddpo data check --column` has it."""
    ignore: tuple[str, ...] = ()
    """Fields that are left out on purpose."""
    epochs: float = Field(1.0, gt=0)
    """Passes over the rows, for lora and full."""
    learning_rate: float = Field(1e-4, gt=0)
    """Peak learning rate, for lora and full."""
    batch: int = Field(16, ge=1)
    """Rows per optimiser step."""
    micro: int | None = Field(8, ge=1)
    """Rows per forward pass with lora and full: changes memory, not results."""
    max_tokens: int = Field(512, ge=8)
    """Longer texts lose their beginning, here and when the scorer is used."""
    template: str | None = None
    """How texts become tokens (`ScorerConfig.template`); null: the tokenizer's chat template, else safe-rlhf."""
    calibration: float = Field(0.1, ge=0, lt=1)
    """Share of the prompts on which scale and zero are set; the head's weight decay is chosen there too."""
    held_out: float = Field(0.2, gt=0, lt=1)
    """Share of the prompts that are only looked at to say how good the scorer is."""
    seed: int = 0
    """Of the split, the order of the rows and the adapters' first weights."""
