"""The sets of prompts that limits name."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from pddpo_ray.config.sections.section import Strict
from pddpo_ray.errors import UserError
from pddpo_ray.limits.written_numbers import number_of


def share_of(value: Any) -> float:
    """`30 %` or 0.3 as a number from 0 to 1."""
    try:
        return number_of("share", value, share=True)
    except UserError as error:
        raise ValueError(str(error)) from error


class PromptSetConfig(Strict):
    """One set of prompts. A prompt may be in several sets."""

    share: Annotated[float, BeforeValidator(share_of), Field(gt=0, le=1)]
    """Share of all prompts that are drawn, written `30 %` or 0.3; the shares of a recipe sum to 100 %."""
    indices: list[int] | None = Field(None, min_length=1)
    """Its prompts by their number in the world, from 0."""
    files: list[str] | None = Field(None, min_length=1)
    """Files of its prompts, in any format of `pddpo data`; for recipes with `data`."""

    @model_validator(mode="after")
    def named_in_one_way(self) -> Self:
        if (self.indices is None) == (self.files is None):
            raise ValueError("a prompt set needs `files` (real text) or `indices` (a world), one of the two")
        return self
