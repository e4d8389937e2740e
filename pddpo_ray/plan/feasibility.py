"""What the policies of a recipe's world can reach under its limits, in a dry run: nothing is trained, asked or drawn.

On a table it is exact, and so on a text world whose reference the cache has. Before that reference is trained a text
world has its sentences and not its costs: what rules and functions say of the sentences is certain even so. Sources
that would have to be asked, and models that would have to be loaded, are left to the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pddpo_ray.config import Config, TextWorldConfig
from pddpo_ray.limits.reading import FEEDBACK, StatedLimit
from pddpo_ray.limits.sources import Source
from pddpo_ray.plan.limits import FREE
from pddpo_ray.registry import code_of
from pddpo_ray.scoring.sources.opening import Surroundings, single_source
from pddpo_ray.worlds.table_limits import TableLimits, as_stated
from pddpo_ray.worlds.text.family import grammar_of
from pddpo_ray.worlds.text.limits import ENUMERABLE, limits_of_sentences, text_limits

LARGEST, LARGEST_OF_FUNCTIONS = 1_000_000, 10_000
"""Answers to all prompts of a text world at most that a dry run looks at, and hands to a function of the user's."""
LEFT = "the run says it before round 1"
OWN = ("world", "reference", FEEDBACK)
"""Sources that the world and its reference stand for."""


def kept_in_world(config: Config) -> list[str]:
    """What the policies of the recipe's world can reach under its stated limits; [] of real text, and without limits.

    Raises UserError where no policy keeps them: one of them alone, or all together.
    """
    match config.world:
        case None:
            return []
        case TextWorldConfig() as world:
            return _kept_in_texts(config, world)
        case world:
            limits = code_of("worlds", world.kind, "limits")
            return [] if limits is None else _kept(limits(config), "all limits")


def _kept(limits: TableLimits, these: str) -> list[str]:
    """A line for each limit. `these` names all of them."""
    limits.demand_feasible()
    reached = limits.reached
    lines = []
    for stated, lowest, together, broken in zip(
        limits.stated, reached.lowest, reached.together, reached.broken, strict=True
    ):
        limit = stated.limit
        best, jointly = (as_stated(limit, limit.cost_limit + float(excess)) for excess in (lowest, together))
        line = f"{limit.name}, {limit}: {best} at best, {jointly} where {these} are kept by the most"
        if limit.quantity.kind != "kl":
            line += f"; {100 * broken:.3g} % of its prompts have no answer that keeps it"
        lines.append(line)
    return lines


def _kept_in_texts(config: Config, world: TextWorldConfig) -> list[str]:
    """Limits whose truth is at hand, together, and what is said of the others."""
    # here: a table's plan needs no torch
    from pddpo_ray.worlds.text.prepared_world import prepare_text_world, reference_is_there

    grammar = grammar_of(world)
    answers = len(grammar.prompt_texts) * len(grammar.answer_texts)
    if answers > LARGEST:
        return [f"this world has {answers:,} answers, too many for a dry run to look at: {LEFT}"]
    trained = reference_is_there(world)
    left = {one.limit.name: why for one in config.stated if (why := _why_left(one, trained, answers))}
    stated = [one for one in config.stated if one.limit.name not in left]
    sources = _opened(config, stated)
    said = [f"{name}: {why}" for name, why in left.items()]
    these = "these limits" if left else "all limits"
    if not stated:
        return said
    if trained:
        prepared = prepare_text_world(config)
        truth = text_limits(prepared.world, stated, sources, config.prompt_sets, config.dual.cost_max)
        return _kept(truth, these) + said
    measured = [one for one in sources if one is not None]
    return _kept(limits_of_sentences(grammar, stated, measured, config.prompt_sets), these) + said


def _why_left(stated: StatedLimit, trained: bool, answers: int) -> str:
    """Why a dry run cannot say what is reachable under a limit on texts; empty where it can."""
    kind = stated.source.kind
    if stated.asks_people:
        return "it is about people's labels, which are not there yet"
    of_reference = kind in OWN or stated.limit.quantity.versus is not None
    if of_reference and not trained:
        return f"it depends on the reference, which is trained when the run begins; {LEFT}"
    if kind in OWN:
        return ""
    if kind == "function" and answers > LARGEST_OF_FUNCTIONS:
        return f"{stated.source} would be called for {answers:,} answers; {LEFT}"
    if kind in FREE:
        return ""
    if kind in ENUMERABLE:
        return f"{stated.source} is not loaded here; {LEFT}"
    return f"nobody knows what {stated.source} says of every answer; the run warns before round 1 by those it has"


def _opened(config: Config, stated: Sequence[StatedLimit]) -> list[Source | None]:
    around = Surroundings(Path.cwd(), config.judge.options)
    return [None if one.source.kind in OWN else single_source(one, around) for one in stated]
