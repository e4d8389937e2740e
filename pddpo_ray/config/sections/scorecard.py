"""What is said of every round's policy where nobody knows the truth: a fixed set of questions, and who scores them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from pddpo_ray.config.sections.scorers import StoredScorerConfig
from pddpo_ray.config.sections.section import Strict

BENIGN_ASKED = 16
"""Harmless requests that only sound alarming, on which refusals are counted: as many as ship."""
PAIRS_RANKED = 64
"""Held-out pairs at most, of which it is counted how many the policy's implicit reward ranks as people did: a share
to within 12 points."""


class ScorecardConfig(Strict):
    """A fixed set of prompts that every round's policy and the reference answer, drawn alike, and what is counted."""

    prompts: int | None = Field(None, ge=0)
    """Prompts, of those that `data.held_out` keeps from the run, else of the run's own. null: 24 on real text, none on
    worlds, whose truth is known; 0: no scorecard."""
    answers: int = Field(2, ge=1)
    """Answers to each prompt; the reference and all rounds draw them from the same seeds."""
    benign_files: list[str] = Field([])
    """Files of harmless requests that only sound alarming, of which 16 are asked and refusals counted, one answer each;
    empty: the 16 that ship."""
    scorers: dict[Literal["reward", "cost"], StoredScorerConfig] = Field({})
    """Scorers that the run does not learn from, of another base or seed and trained on prompts that its own never saw,
    e.g. {reward: FOLDER}; one that is not named is trained under `train`, and its figures are left out otherwise."""
    train: bool = False
    """Train those that are not named before round 1, as `scorers` says but from another seed, on the pairs that
    `data.held_out` keeps from the run and whose prompts the scorecard does not ask."""

    @field_validator("scorers", mode="before")
    @classmethod
    def null_takes_one_out(cls, entries: Any) -> Any:
        if not isinstance(entries, dict):
            return entries
        return {kind: entry for kind, entry in entries.items() if entry is not None}

    @property
    def used(self) -> tuple[StoredScorerConfig | None, ...]:
        """Its scorers; None: one that the run trains."""
        return (*self.scorers.values(), *[None] * (self.train * (2 - len(self.scorers))))
