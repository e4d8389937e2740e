"""Keys of a recipe whose values are names of the registry, or settings of what such a name stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from pddpo_ray.registry import UnknownName, entry_of, resolved


@dataclass(frozen=True)
class Named:
    """Marks a text that must be a name of this kind: `bonus: Annotated[str, Named("bonuses")]`."""

    kind: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def known(name: str) -> str:
            entry_of(self.kind, name)
            return name

        return core_schema.no_info_after_validator_function(known, handler(source))


@dataclass(frozen=True)
class SettingsOf:
    """Marks the mapping that holds the settings of a name of this kind; `by_name`: a mapping of them for each name."""

    kind: str
    by_name: bool = False


def with_settings(given: Any, kind: str, key: str, where: str, *, default: str) -> Any:
    """A section as it is given, with its `settings` checked and filled in by what its `key` names.

    Raises ValueError with the setting that is wrong. A name that is unknown is left for its own key to refuse.
    """
    if not isinstance(given, dict):
        return given
    name, own = given.get(key, default), given.get("settings", {})
    if not isinstance(name, str) or not isinstance(own, dict):
        return given
    try:
        settings = resolved(kind, name, own, where)
    except UnknownName:
        return given
    return {**given, "settings": settings} if settings or own else given
