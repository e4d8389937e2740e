"""How policies are fitted, and how much of the past a fit sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, field_validator

from pddpo_ray.config.sections.section import Strict
from pddpo_ray.errors import nearest_or_all

Stage = Literal["reward", "cost", "first_reward", "first_cost", "compare_reward", "compare_cost"]
"""reward: standard DPO against the reference. cost: Lagrangian DPO against the reward policy. first_: in round 1, which
starts from the reference. compare_: the first reward fit and all cost fits of the offline run to compare with."""
STEPS: Mapping[str, int] = {"first_reward": 200, "first_cost": 60}
"""Steps where a recipe gives neither steps nor epochs; other stages: 30. Long first cost fits push a small model off
its language: they are gentle."""


class FitOptions(Strict):
    """Optimiser of a fit (AdamW)."""

    epochs: float | None = Field(None, gt=0)
    """Passes over the rows of the fit in place of `steps`; null: `steps` counts."""
    learning_rate: float = Field(5e-4, gt=0)
    """Peak learning rate; the cost stage multiplies it by min(1, multiplier)."""
    batch_pairs: int = Field(32, ge=1)
    """Pairs per step, over all workers."""
    warmup: float = Field(0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """What the learning rate does afterwards."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """AdamW's first beta: the share of a step's direction that is the last one's. Rounds of a few steps with `moments:
    carried` want 0.5: 0.9 keeps pushing for three rounds at multipliers that have moved (docs/real-model.md)."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""


class FitConfig(FitOptions):
    """One fit."""

    steps: int = Field(30, ge=1)
    """Optimiser steps, where no `epochs` are given."""


class EveryFit(FitOptions):
    """Optimiser of every fit of a policy (AdamW)."""

    steps: int | None = Field(None, ge=1)
    """Optimiser steps; null, without `epochs`: 30, and in round 1 200 of the reward stage and 60 of the cost stage."""


class UnionRefit(Strict):
    """All pairs in every round; with `epochs` in place of `steps` the work of a run grows with its square."""

    kind: Literal["union"] = "union"
    """Tag of this variant."""


class RowBudget(Strict):
    """The new pairs and a fixed number of older ones, weighted by what they stand for."""

    rows: int = Field(20_000, ge=0)
    """Older pairs of a fit, drawn evenly by seed."""
    per_new: float = Field(2.0, ge=0)
    """Further older pairs for each new one."""


class BudgetRefit(RowBudget):
    """The row budget in every round."""

    kind: Literal["budget"] = "budget"
    """Tag of this variant."""


class GeometricRefit(RowBudget):
    """All pairs in rounds 1, 2, 4, 8, ..., the budget in between."""

    kind: Literal["geometric"] = "geometric"
    """Tag of this variant."""


class DeterminantRefit(RowBudget):
    """All pairs when the design matrix's determinant has doubled since they were last seen, the budget in between."""

    kind: Literal["determinant"] = "determinant"
    """Tag of this variant."""


Refit = Annotated[UnionRefit | BudgetRefit | GeometricRefit | DeterminantRefit, Field(discriminator="kind")]


class TrainerConfig(Strict):
    """How policies are fitted."""

    engine: Literal["torch", "zero1", "zero2", "zero3"] = "torch"
    """Plain torch, or DeepSpeed ZeRO at that stage (needs `cluster.mode: ray`)."""
    workers: int = Field(1, ge=1)
    """Ranks of the worker group."""
    threads: int = Field(1, ge=1)
    """CPU threads of each rank."""
    micro_pairs: int | None = Field(None, ge=1)
    """Pairs per forward pass of a rank; null: its whole share. Changes memory, not results."""
    activation_gib: float | None = Field(None, gt=0)
    """Budget for the activations of one forward and backward pass of a rank, in GiB. A share of a batch that needs more
    is cut into passes; a single pair that needs more is computed in part a second time. Changes memory, not results."""
    fit: EveryFit = EveryFit()
    stages: dict[str, dict[str, Any]] = Field({})
    """What single stages have in place of `fit`, e.g. {first_cost: {epochs: 1}}: reward, cost, first_reward and
    first_cost (of round 1), compare_reward and compare_cost (of `offline.compare_rounds`). Where a recipe extends
    another one, its `fit` counts before the other one's `stages`."""
    warm_start: Literal["carried", "previous", "reward"] = "carried"
    """Start of a cost fit after round 1. carried: the new reward policy plus last round's cost part, rescaled to the
    new multiplier. previous: last round's policy. reward: the reward policy, as in round 1."""
    last_rate: float = Field(1.0, gt=0, le=1)
    """Learning rates of the last round as a share of those above, falling linearly in between: late fits polish."""
    support: float = Field(0.5, ge=0)
    """Weight of the term that keeps a policy on the reference's tokens without touching its choices among them: the
    mean over response tokens of -log of the mass on tokens to which the reference gives at least 0.1 %. Small models
    need it against likelihood displacement; recipes that follow the paper have 0, which switches it off. Pairs compare
    whole answers and do not mind mass that leaves the language: a toy language needs about 100."""
    refit: Refit = BudgetRefit()
    """How much of the past a fit sees."""
    measured: Literal["all", "newest"] = "all"
    """Measured answers that teach limits on rates and means, and a computed reward. all: as `refit` says. newest: those
    of the last round alone, which are what a network's few steps can move (docs/real-model.md)."""
    moments: Literal["fresh", "carried"] = "fresh"
    """AdamW's moments when a fit begins. carried: those with which the last round's fit of the same stage ended, so
    that rounds of a few steps average over more answers than their own; it needs `engine: torch`."""
    held_out: float = Field(0.0, ge=0, le=0.5)
    """Share of a fit's prompts whose pairs teach nothing: a network's fit ends with the weights that have the smallest
    loss on them. It needs four such prompts; 0: every pair teaches, and the last step counts."""
    max_failures: int = Field(3, ge=0)
    """How often a broken worker group is restarted before the run fails."""
    deadline_s: float = Field(1800.0, gt=0)
    """Longest time without progress of a fit or of scoring, in seconds; then the run fails and says whom it waited
    for."""

    @field_validator("stages")
    @classmethod
    def stages_are_fits(cls, stages: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Raises ValueError for a stage that there is not, and for what no fit has."""
        for stage in stages:
            if stage not in get_args(Stage):
                raise ValueError(f"unknown stage `{stage}`{nearest_or_all(stage, get_args(Stage))}")
        return {stage: fit_keys(fit, f"{stage}: ") for stage, fit in stages.items()}

    def of_stage(self, stage: Stage) -> FitConfig:
        """The fit of a stage: its own keys over those of every fit."""
        every = {"steps": STEPS.get(stage, FitConfig().steps), **self.fit.model_dump(exclude_none=True)}
        return fit_with(every, self.stages.get(stage, {}))

    @property
    def alone(self) -> TrainerConfig:
        """The stages of the offline run to compare with, where they are given."""
        keys = {"first_reward": "compare_reward", "first_cost": "compare_cost", "cost": "compare_cost"}
        fits = {stage: self.stages[key] for stage, key in keys.items() if self.stages.get(key)}
        return self.model_copy(update={"stages": {**self.stages, **fits}})


def fit_keys(fit: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The keys of a fit that are set, checked. Raises ValueError for an unknown key or a wrong type."""
    for key in fit:
        if key not in FitConfig.model_fields:
            raise ValueError(f"{where}unknown key `{key}`{nearest_or_all(key, list(FitConfig.model_fields))}")
    settings = {key: value for key, value in fit.items() if value is not None}
    try:
        checked = FitConfig.model_validate(settings).model_dump()
    except ValidationError as error:
        first = error.errors()[0]
        problem = first["msg"].replace("Input should be", "must be", 1)
        raise ValueError(f"{where}{first['loc'][0]} is {first['input']!r}, but {problem}") from error
    return {key: checked[key] for key in settings}


def fit_with(every: Mapping[str, Any], overrides: Mapping[str, Any]) -> FitConfig:
    """`overrides` over `every`; steps in `overrides` drop the epochs of `every`."""
    settings = {key: value for key, value in every.items() if key != "epochs" or "steps" not in overrides}
    return FitConfig.model_validate({**settings, **overrides})
