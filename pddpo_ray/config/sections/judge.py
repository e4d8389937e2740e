"""The language model that judges: for labels of `feedback`, and for limits and rewards that name none themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from pddpo_ray.config.sections.section import Strict
from pddpo_ray.errors import UserError

NAMELESS = "say which model answers: `model: NAME`, and `endpoint:` where it is not local"


class JudgeConfig(Strict):
    """How a language model behind an OpenAI-compatible endpoint is asked; limits and rewards may say it otherwise."""

    endpoint: str = Field("http://127.0.0.1:8000/v1", pattern=r"^https?://[^\s/]+\S*$")
    """Base URL; /chat/completions is asked."""
    model: str | None = None
    """Name of the model there; null: the section that asks a judge names it."""
    key_env: str | None = None
    """Environment variable that holds the key; null: no key is sent."""
    temperature: float = Field(0.7, ge=0)
    """Of the judge's answers; several labels of one answer differ only above 0."""
    max_tokens: int = Field(512, ge=16)
    """Longest explanation and scores."""
    workers: int = Field(8, ge=1)
    """Questions that are open at a time."""
    timeout: float = Field(120.0, gt=0)
    """Longest wait for one answer of the judge, in seconds."""
    tries: int = Field(4, ge=1)
    """How often one question is sent when the endpoint fails or is busy."""
    fields: dict[Literal["max_tokens", "temperature", "seed", "system"], str | None] = Field(default_factory=dict)
    """Names of request fields there, e.g. {max_tokens: max_completion_tokens, temperature: null}; null: not sent.
    system: the role of the instructions; null: they begin the question. What is refused by its name before anything was
    answered is renamed or left out without this, with a warning."""

    @property
    def options(self) -> dict[str, Any]:
        """What it says for limits and rewards that say nothing themselves."""
        return self.model_dump(exclude_none=True)


class EndpointConfig(JudgeConfig):
    """The same of a judge or a grader, with its model."""

    model: str
    """Name of the model there."""


def endpoint_settings(where: str, options: Mapping[str, Any]) -> EndpointConfig:
    """The endpoint of a judge or a grader. Raises UserError for a missing model or a value of another type."""
    if not options.get("model"):
        raise UserError(f"{where}: {NAMELESS}")
    settings = {key: options[key] for key in EndpointConfig.model_fields if options.get(key) is not None}
    try:
        return EndpointConfig(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{where}.{first['loc'][0]}: {first['msg']}") from error
