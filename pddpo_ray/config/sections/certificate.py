"""How a run shows that its limits are kept: who is put to the test, at which level, and what may be drawn for it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from pddpo_ray.config.sections.section import Strict


class CertificateConfig(Strict):
    """How a run shows that its limits are kept (docs/certificates.md). Levels are fixed with the recipe; budgets
    may grow later, since a look costs nothing."""

    certify: Literal["end", "never"] = "never"
    """When the run tests its policies by itself: `end`, when its rounds are done; `never`, since a test asks for labels
    beyond those of training: `pddpo certify RUN` asks for them."""
    candidates: int = Field(3, ge=1)
    """The most rounds' policies that are tested at the end, in the order that the answers of the rounds say, until one
    is certified; all but the last give way to the next where two batches or more miss a limit on average."""
    draws: int = Field(2000, ge=1)
    """The most draws of a candidate: a prompt, an answer and its labels each. It stops earlier when it is decided."""
    batch: int = Field(64, ge=1, le=10_000)
    """Draws that are asked for together."""
    shares: list[float] | None = None
    """Shares of 1 - confidence for the first, second, ... candidate, which sum to at most 1; null: 6 / (pi^2 k^2),
    without an end."""
    mixtures: list[int] = Field([])
    """First rounds of mixtures that the rounds' own draws certify, those whose labels move the multipliers: 1 is the
    theorem's mixture of all rounds, j the tail of rounds j to the last. Each enters the ledger before round 1, in this
    order. Prompts are then drawn independently of each other, not in epochs."""
    prompts: list[str] = Field([])
    """Files of the certification set's prompts (real text alone). A run never asks them and leaves out pairs of them;
    each is in the prompt sets whose files hold it. Empty: the run's own prompts, which the policy was trained on."""
    gate: list[str] = Field([])
    """Groups of prompts that have to keep every limit by themselves too, each shown by draws of its own at the limit's
    own level: categories of a prompt file, prompt sets, or groups of a drawn world. All others have bounds of their own
    that decide nothing."""
    scope: Literal["set", "population"] = "set"
    """What the sentence is about: the mean over the prompts of the certification set, or new prompts like them."""

    @model_validator(mode="after")
    def levels_suffice(self) -> Self:
        if len(set(self.mixtures)) < len(self.mixtures) or min(self.mixtures, default=1) < 1:
            raise ValueError(f"mixtures are first rounds, each 1 or more and named once; not {self.mixtures}")
        if self.gate and self.mixtures:
            raise ValueError(
                "gate asks for draws of each group by itself, which the rounds of `mixtures` have not; leave one of"
                " both out, and ask `pddpo certify RUN --policy mixture` at the end"
            )
        if self.shares is not None and len(self.shares) < len(self.mixtures):
            raise ValueError(
                f"{len(self.mixtures)} mixtures enter the ledger first, and shares has {len(self.shares)} parts"
            )
        if self.shares is not None:
            # imported here: the command line's help needs no numpy
            from pddpo_ray.theory.certificates.levels import Allocation

            Allocation(tuple(self.shares))
        return self
