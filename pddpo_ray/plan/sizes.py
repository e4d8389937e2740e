"""Numbers that no run could ever work through, refused before they are multiplied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pddpo_ray.config import Config
from pddpo_ray.errors import UserError

MOST = 1_000_000_000
MOST_ROUNDS = 1_000_000
FREE = ("seed", "bytes")
"""Parts of names of settings that are no amount of work."""


def demand_possible_sizes(config: Config) -> None:
    """UserError where a count is beyond what any run could do."""
    if config.rounds > MOST_ROUNDS:
        raise UserError(f"rounds={config.rounds}: more than {MOST_ROUNDS:,} rounds never end; give fewer")
    for key, value in _counts(config.model_dump(mode="json")):
        if value > MOST:
            raise UserError(f"{key}={value}: more than {MOST:,} of anything is never done; give a smaller number")


def _counts(value: Any, key: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not any(word in str(name) for word in FREE):
                yield from _counts(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _counts(inner, key)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield key, value
