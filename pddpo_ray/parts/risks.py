"""What the recipe says about the risk of prompts by their category, for people who opted out of harmful texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pddpo_ray.annotation.risks import RiskOf, highest_known
from pddpo_ray.config import Config
from pddpo_ray.errors import UserError, nearest


def stated_risk(
    config: Config, categories_of: Mapping[str, Sequence[str]], scored: RiskOf | None = None
) -> RiskOf | None:
    """The risk by score and category; `scored` alone where the recipe states none of a category.

    `categories_of` are the names of each prompt's categories and sets, by its id. Raises UserError for a name that no
    prompt has.
    """
    risks = config.people.risk_by_category
    if not risks:
        return scored
    known = sorted({name for names in categories_of.values() for name in names})
    there = f"; there are {', '.join(known)}" if known else "; its prompts have no `category` and no prompt set"
    for name in risks:
        if name not in known:
            near = nearest(name, known, there)
            raise UserError(f"people.risk_by_category: no prompt of the run is in `{name}`{near}")
    return highest_known(risks, categories_of, scored)
