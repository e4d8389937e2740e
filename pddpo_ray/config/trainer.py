"""How policies are fitted, and how much of the past a fit sees."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pddpo_ray.config.section import Strict


class FitConfig(Strict):
    """Optimiser of one fit (AdamW)."""

    steps: int = Field(30, ge=1)
    """Optimiser steps, where no `epochs` are given."""
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
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""


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
    reward: FitConfig = FitConfig()
    """The reward stage (standard DPO against the reference)."""
    cost: FitConfig = FitConfig()
    """The cost stage (Lagrangian DPO against the reward policy)."""
    first_reward: FitConfig = FitConfig(steps=200)
    """The reward stage of round 1, which starts from the reference."""
    first_cost: FitConfig = FitConfig(steps=60)
    """The cost stage of round 1. Long first cost fits push a small model off its language: keep them gentle."""
    warm_start: Literal["carried", "previous", "reward"] = "carried"
    """Start of a cost fit after round 1. carried: the new reward policy plus last round's cost part, rescaled to the
    new multiplier. previous: last round's policy. reward: the reward policy, as in round 1."""
    last_rate: float = Field(1.0, gt=0, le=1)
    """Learning rates of the last round as a share of those above, falling linearly in between: late fits polish."""
    support: float = Field(0.5, ge=0)
    """Weight of the term that keeps a policy on the reference's tokens without touching its choices among them: the
    mean over response tokens of -log of the mass on tokens to which the reference gives at least 0.1 %. Small models
    need it against likelihood displacement; recipes that follow the paper have 0, which switches it off."""
    refit: Refit = BudgetRefit()
    """How much of the past a fit sees."""
    held_out: float = Field(0.0, ge=0, le=0.5)
    """Share of a fit's prompts whose pairs teach nothing: a network's fit ends with the weights that have the smallest
    loss on them. It needs four such prompts; 0: every pair teaches, and the last step counts."""
    max_failures: int = Field(3, ge=0)
    """How often a broken worker group is restarted before the run fails."""
    deadline_s: float = Field(1800.0, gt=0)
    """Longest time without progress of a fit or of scoring, in seconds; then the run fails and says whom it waited
    for."""
