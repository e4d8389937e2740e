"""What the recipe says about the risk of prompts by their category, for people who opted out of harmful texts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from pddpo_ray.annotation.risks import RiskOf, highest_known
from pddpo_ray.config import Config
from pddpo_ray.errors import UserError


def stated_risk(
    config: Config, categories_of: Mapping[str, Sequence[str]], scored: RiskOf | None = None
) -> RiskOf | None:
    """The risk by score and category; `scored` alone where the recipe states none of a category.

    `categories_of` are the names of each prompt's categories and sets, by its id. Raises UserError for a name that no
    prompt has.
    """
    risks = config.queue.risk_by_category
    if not risks:
        return scored
    known = sorted({name for names in categories_of.values() for name in names})
    where = "feedback" if config.queue is config.feedback else "people"
    for name in risks:
        if name not in known:
            raise UserError(f"{where}.risk_by_category: no prompt of the run is in {name!r}{_nearest(name, known)}")
    return highest_known(risks, categories_of, scored)


def _nearest(word: str, known: Sequence[str]) -> str:
    if not known:
        return "; its prompts have no `category`, and it has no prompt sets"
    close = difflib.get_close_matches(word, known, 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"
