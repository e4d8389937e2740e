"""Recipe keys whose values are registry names or the settings of such a name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, create_model, model_validator
from pydantic_core import CoreSchema, core_schema

from pddpo_ray.config.sections.section import Strict
from pddpo_ray.registry import UnknownName, checked, entry_of, installed_names, resolved


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


def with_settings(section: Any, kind: str, key: str, where: str, *, default: str) -> Any:
    """The section with its `settings` checked and completed by the class that its `key` names.

    Raises ValueError with the setting that is wrong. An unknown name is left for its own key to refuse.
    """
    if not isinstance(section, dict):
        return section
    name, own_settings = section.get(key, default), section.get("settings", {})
    if not isinstance(name, str) or not isinstance(own_settings, dict):
        return section
    try:
        settings = resolved(kind, name, own_settings, where)
    except UnknownName:
        return section
    return {**section, "settings": settings} if settings or own_settings else section


class Installed(Strict):
    """A variant of an installed package; its own settings stand beside `kind`."""

    model_config = ConfigDict(extra="allow")
    registry: ClassVar[str]
    """The kind of its names."""
    where: ClassVar[str]
    """Its place in a recipe."""
    kind: str
    """Tag of this variant."""

    @model_validator(mode="before")
    @classmethod
    def settings_are_its_own(cls, section: Any) -> Any:
        """The package's class checks what stands beside `kind`, and fills in what does not."""
        if not isinstance(section, dict) or "kind" not in section:
            return section
        own_settings = {key: value for key, value in section.items() if key != "kind"}
        return {"kind": section["kind"], **resolved(cls.registry, section["kind"], own_settings, cls.where)}

    @property
    def settings(self) -> BaseModel | None:
        """The same as the package's own class."""
        return checked(self.registry, self.kind, self.model_dump(exclude={"kind"}), self.where)


def variants(base: type[Installed], *shipped: Any) -> Any:
    """The union, tagged by `kind`, of the shipped variants and one for each installed name; loads none of them."""
    tags: dict[str, Any] = {name: (Literal[name], name) for name in installed_names(base.registry)}
    models = [create_model(f"{base.__name__}_{name}", __base__=base, kind=tag) for name, tag in tags.items()]
    return Annotated[reduce(or_, [*shipped, *models]), Field(discriminator="kind")]
