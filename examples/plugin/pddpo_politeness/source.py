"""A source of limits with settings of its own: `{rate: {shouting: , share: 0.3}}`."""

from __future__ import annotations

from pydantic import Field

from pddpo_ray.config.sections.section import Strict
from pddpo_ray.limits.quantities import VERDICT
from pddpo_ray.limits.source_kinds import SourceKind
from pddpo_ray.limits.sources import Answer, Opening, Source, one_by_one


class Shouting(Strict):
    """When an answer counts as shouted."""

    share: float = Field(0.5, gt=0, le=1)
    """Least share of capitals among its letters."""


def open_shouting(given: Opening) -> Source:
    """Yes where an answer is shouted; no number for one without letters."""
    settings = given.settings
    assert isinstance(settings, Shouting)

    def shouted(answer: Answer) -> bool | None:
        letters = [one for one in answer.response if one.isalpha()]
        return sum(map(str.isupper, letters)) >= settings.share * len(letters) if letters else None

    return Source("shouting", f"shouting {settings.share:g}", one_by_one(shouted), VERDICT)


SHOUTING = SourceKind("pddpo_politeness.source:open_shouting", Shouting, scale=VERDICT)
