"""Reward and cost models: stored ones, and how others are trained."""

from __future__ import annotations

from pydantic import Field

from pddpo_ray.config.section import Strict
from pddpo_ray.config.trainer import FitConfig


class ScorerConfig(Strict):
    """How a stored reward or cost model is read; its score is scale * output + shift."""

    template: str | None = None
    """tokens, safe-rlhf, chat, pair, or a text with {prompt} and {answer}; null: what the model was made with."""
    label: str | None = None
    """Label of a classifier whose log-odds are the score; null: its only output, or the second of two."""
    scale: float = 1.0
    """A harmlessness model is a cost at scale -1."""
    shift: float = 0.0
    """Moves the zero of a cost."""
    max_tokens: int | None = Field(None, ge=8)
    """Longer texts lose their beginning; null: the model's own limit."""
    batch: int = Field(64, ge=1)
    """Texts per forward pass."""


class StoredScorerConfig(ScorerConfig):
    """A reward or cost model in a folder or on the hub."""

    path: str
    """Folder with config.json, *.safetensors and tokenizer, or a hub name owner/model."""


class ScorerTrainingConfig(Strict):
    """Reward and cost models that are trained before the first round, starting from the reference."""

    pairs: int = Field(3000, ge=8)
    """Pairs of the reference's answers that are labelled for it, on worlds; elsewhere the offline pairs are taken."""
    temperature: float = Field(1.5, gt=0)
    """Temperature of those answers: above 1 they cover more than the policy will say at first."""
    fit: FitConfig = FitConfig(steps=400, learning_rate=2e-3, batch_pairs=64)
    """Optimiser of each fit."""
    ridge: float = Field(1e-3, ge=0)
    """Weight of the squared scores: keeps them finite where the pairs leave no doubt."""
    held_out: float = Field(0.1, ge=0, lt=1)
    """Share of the pairs that is kept for the accuracies in the journal."""
