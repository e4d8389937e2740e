"""What the policies of a recipe's world can reach under its limits, in a dry run: nothing is trained, asked or drawn.

It is exact on a table, and on a text world whose reference is in the cache. Before that reference is trained, only
rules and functions can be evaluated on the world's sentences. Sources that must be asked and models that must be loaded
are left to the run.
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
"""The most answers of a text world that a dry run enumerates, and that it passes to a user's function."""
LEFT = "the run says it before round 1"
OWN = ("world", "reference", FEEDBACK)
"""Sources that the world and its reference answer."""


def kept_in_world(config: Config) -> list[str]:
    """What the policies of the recipe's world can reach under its stated limits; [] for real text and without limits.

    Raises UserError where no policy keeps one of them, or all together.
    """
    match config.world:
        case None:
            return []
        case TextWorldConfig() as world:
            return _text_world_lines(config, world)
        case world:
            limits = code_of("worlds", world.kind, "limits")
            return [] if limits is None else _limit_lines(limits(config), "all limits")


def _limit_lines(limits: TableLimits, subject: str) -> list[str]:
    """A line for each limit. `subject` names all of them."""
    limits.demand_feasible()
    reached = limits.reached
    lines = []
    for entry, lowest, together, broken in zip(
        limits.stated, reached.lowest, reached.together, reached.broken, strict=True
    ):
        limit = entry.limit
        best, jointly = (as_stated(limit, limit.cost_limit + float(excess)) for excess in (lowest, together))
        line = f"{limit.name}, {limit}: {best} at best, {jointly} where {subject} are kept by the most"
        if limit.quantity.kind != "kl":
            line += f"; {100 * broken:.3g} % of its prompts have no answer that keeps it"
        lines.append(line)
    return lines


def _text_world_lines(config: Config, world: TextWorldConfig) -> list[str]:
    """What is reachable where the truth can be computed here, and why not elsewhere."""
    # here: a table's plan needs no torch
    from pddpo_ray.worlds.text.prepared_world import prepare_text_world, reference_is_there

    grammar = grammar_of(world)
    answers = len(grammar.prompt_texts) * len(grammar.answer_texts)
    if answers > LARGEST:
        return [f"this world has {answers:,} answers, too many for a dry run to look at: {LEFT}"]
    trained = reference_is_there(world)
    reasons = {
        entry.limit.name: reason for entry in config.stated if (reason := _reason_left_out(entry, trained, answers))
    }
    entries = [entry for entry in config.stated if entry.limit.name not in reasons]
    sources = _open_sources(config, entries)
    notes = [f"{name}: {reason}" for name, reason in reasons.items()]
    subject = "these limits" if reasons else "all limits"
    if not entries:
        return notes
    if trained:
        prepared = prepare_text_world(config)
        truth = text_limits(prepared.world, entries, sources, config.prompt_sets, config.dual.cost_max)
        return _limit_lines(truth, subject) + notes
    measured = [source for source in sources if source is not None]
    return _limit_lines(limits_of_sentences(grammar, entries, measured, config.prompt_sets), subject) + notes


def _reason_left_out(entry: StatedLimit, trained: bool, answers: int) -> str:
    """Why a dry run cannot say what is reachable under a limit on texts; empty where it can."""
    kind = entry.source.kind
    if entry.asks_people:
        return "it is about people's labels, which are not there yet"
    of_reference = kind in OWN or entry.limit.quantity.versus is not None
    if of_reference and not trained:
        return f"it depends on the reference, which is trained when the run begins; {LEFT}"
    if kind in OWN:
        return ""
    if kind == "function" and answers > LARGEST_OF_FUNCTIONS:
        return f"{entry.source} would be called for {answers:,} answers; {LEFT}"
    if kind in FREE:
        return ""
    if kind in ENUMERABLE:
        return f"{entry.source} is not loaded here; {LEFT}"
    return f"nobody knows what {entry.source} says of every answer; the run warns before round 1 by those it has"


def _open_sources(config: Config, entries: Sequence[StatedLimit]) -> list[Source | None]:
    around = Surroundings(Path.cwd(), config.judge.options)
    return [None if entry.source.kind in OWN else single_source(entry, around) for entry in entries]
