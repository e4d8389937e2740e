"""What a run takes from the endpoint that serves it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from pddpo_ray.config.sections.prompts import share_of
from pddpo_ray.config.sections.section import Strict


class ProductionConfig(Strict):
    """Prompts and verdicts of the endpoint's users in later rounds (docs/serving.md).

    They enter a run only if its recipe says so here, and only if the endpoint's operator and the user who sent them
    agreed."""

    share: Annotated[float, BeforeValidator(share_of), Field(ge=0, lt=1)] = 0.0
    """Share of a round's prompts that are users' own, written `20 %` or 0.2; they come in epochs, as the others."""
    verdicts: float = Field(0.0, ge=0, le=1)
    """Weight of a pair that users' verdicts make, beside 1 of a labelled pair; 0: verdicts teach nothing."""
