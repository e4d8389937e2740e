"""Limits in a dry run: what is measured, what policies of a table can reach, version 0.1 in the lines of today."""

from __future__ import annotations

from dataclasses import dataclass

from pddpo_ray.config import Config, TabularWorldConfig
from pddpo_ray.config.recipe import STATED_LIMITS
from pddpo_ray.limits.recipe_form import limits_lines
from pddpo_ray.worlds.table_limits import as_stated, table_limits
from pddpo_ray.worlds.tabular_files import tabular_world

FREE = ("rule", "regex", "json_schema", "function")
"""Sources that cost nothing but time."""


@dataclass(frozen=True)
class Measurements:
    """How often a limit's source is asked: labels of answers of its prompts, about."""

    limit: str
    source: str
    before: int
    """About the answers of the offline pairs."""
    per_round: int
    """About the round's answers, and both answers of every explored pair."""
    in_all: int


def measurements(config: Config) -> list[Measurements]:
    """What a run under `limits:` asks for each of them; nothing for means and rules, which are no labels."""
    found = []
    for one in config.stated:
        if one.limit.quantity.kind == "mean" or one.source.kind in FREE:
            continue
        over, each = one.limit.quantity.over, one.asking.labels_each or 1
        share = 1.0 if over is None else config.prompts[over].share
        before = round(2 * config.offline.pairs * share) * each
        per_round = round((config.feedback.responses + 2 * config.pairs_asked) * share) * each
        found.append(
            Measurements(one.limit.name, str(one.source), before, per_round, before + config.rounds * per_round)
        )
    return found


def kept_on_tables(config: Config) -> list[str]:
    """What the policies of a table can reach under its stated limits, exactly; [] elsewhere.

    Raises UserError where no policy keeps them: alone, or all together.
    """
    if not config.limits or not isinstance(config.world, TabularWorldConfig):
        return []
    limits = table_limits(tabular_world(config.world), config.stated, config.prompt_sets)
    limits.demand_feasible()
    found = limits.reached
    lines = []
    for stated, lowest, together, broken in zip(limits.stated, found.lowest, found.together, found.broken, strict=True):
        limit = stated.limit
        best, jointly = (as_stated(limit, limit.cost_limit + float(excess)) for excess in (lowest, together))
        lines.append(
            f"{limit.name}, {limit}: {best} at best, {jointly} where all limits are kept by the most;"
            f" {100 * broken:.3g} % of its prompts have no answer that keeps it"
        )
    return lines


def of_version_0_1(config: Config) -> list[str]:
    """The recipe's `constraints` and `dual.threshold` as lines of `limits:`; [] where it has those, or cannot."""
    if config.algorithm not in STATED_LIMITS:
        return []
    try:
        lines = limits_lines(config.model_dump(mode="json"))
    except ValueError as problem:
        return [f"there is no such line: {problem}"]
    return [] if lines is None else lines.splitlines()
