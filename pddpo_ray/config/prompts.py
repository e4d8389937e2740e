"""The sets of prompts that limits name."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from pddpo_ray.config.section import Strict
from pddpo_ray.errors import UserError
from pddpo_ray.limits.reading import number_of


def _share(value: Any) -> float:
    try:
        return number_of("share", value, share=True)
    except UserError as error:
        raise ValueError(str(error)) from error


class PromptSetConfig(Strict):
    """One set of prompts. A prompt may be in several sets."""

    share: Annotated[float, BeforeValidator(_share), Field(gt=0, le=1)]
    """Share of all prompts that are drawn, written `30 %` or 0.3; the shares of a recipe sum to 100 %."""
    indices: list[int] = Field(min_length=1)
    """Its prompts by their number in a table, from 0."""
