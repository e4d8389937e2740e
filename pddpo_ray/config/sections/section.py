"""What every section of a recipe is: a frozen model that refuses unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Unknown keys are refused and values are not converted: a typing mistake is never a default."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)
