"""`limits` of result.json: each stated limit in its own unit, with multiplier, price and, on a world, the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pddpo_ray.certificates.outcome import said_of, with_prefixes
from pddpo_ray.config import Config, FixedRule
from pddpo_ray.journal import JournalReader
from pddpo_ray.limits.quantities import Limit
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.parts.held_limit import HeldLimit
from pddpo_ray.parts.limits import ANSWERS
from pddpo_ray.parts.measuring import table_of
from pddpo_ray.parts.people_measuring import bias_of, drawn_evenly
from pddpo_ray.theory.multipliers.price import Price, late_multiplier, price
from pddpo_ray.worlds.exact_evaluation import Evaluation, WorldView

LOOSER = 0.2
"""A price is for a limit that is looser by this share of what it allows."""


def limits_result(
    config: Config,
    journal: JournalReader,
    held: Sequence[HeldLimit],
    world: WorldView | None,
    evaluation: Evaluation | None,
) -> dict[str, dict[str, Any]]:
    """What the last finished round says about every limit, by name."""
    steps = {step.constraint: step for step in journal.dual_steps()}
    results: dict[str, dict[str, Any]] = {}
    prefixed = with_prefixes([one.stated.limit for one in held])
    for index, (one, (prefix, limit)) in enumerate(zip(held, prefixed, strict=True)):
        quantity = limit.quantity
        entry: dict[str, Any] = {
            "limit": str(limit),
            "kind": quantity.kind,
            "unit": quantity.unit,
            "over": quantity.over,
            "at_least": limit.at_least,
            "bound": limit.bound.number,
            "source": str(one.stated.source),
        }
        if one.name in steps:
            step = steps[one.name]
            said = said_of(limit, prefix, step.estimate, journal.metrics().get(step.round, {}))
            entry |= {"estimate": said.estimate, "low": said.low, "high": said.high}
            entry |= {"multiplier": step.multiplier_before, "multiplier_next": step.multiplier_after}
            entry["price"] = _price(config, journal, one)
            entry["neighbour"] = _neighbour(journal, one, prefix)
        if one.stated.audited is not None:
            entry["audit"] = _audit(journal, one.stated, config.dual.cost_max)
        if world is not None and evaluation is not None:
            entry |= _truth(one, index, world, evaluation)
        results[one.name] = entry
    return results


def _audit(journal: JournalReader, stated: StatedLimit, cost_max: float) -> dict[str, Any] | None:
    """How far the machine is off by all of people's labels; None where they gave none."""
    records = journal.measurements(phase=ANSWERS, limit=stated.limit.name)
    table = table_of(records, [stated], list(dict.fromkeys(one.answer for one in records)), cost_max)
    said = np.isfinite(table.people[:, 0]) & drawn_evenly(stated, table.chance[:, 0])
    bias = bias_of(stated, table.costs[said, 0], table.people[said, 0], cost_max)
    asked = int((table.chance > 0).sum())
    return None if bias is None else {**asdict(bias), "asked": asked, "text": bias.text(stated)}


def _truth(one: HeldLimit, index: int, world: WorldView, evaluation: Evaluation) -> dict[str, float]:
    """Exact values in the limit's unit. The oracle's costs are in ranges of the measure."""
    oracle, limit = world.oracle, one.stated.limit

    def value(g: Sequence[float]) -> float:
        return limit.cost(limit.cost_limit + one.scale * g[index])

    best = oracle.optimum
    tables = {"reference": oracle.reference, "last": evaluation.last(), "mixture": evaluation.mixture()}
    values = {f"value_{name}": value((oracle.g(table), *oracle.further_g(table))) for name, table in tables.items()}
    multiplier = (best.multiplier, *best.further_multipliers)[index] / one.scale
    return values | {"value_optimum": value((best.g, *best.further_g)), "multiplier_optimum": multiplier}


def _price(config: Config, journal: JournalReader, one: HeldLimit) -> dict[str, Any] | None:
    """What a limit costs, from the multipliers of the late rounds; None where the multiplier does not learn."""
    if isinstance(config.duals[one.name].rule, FixedRule):
        return None
    trace = [step.multiplier_after for step in journal.dual_steps() if step.constraint == one.name]
    of = price(*late_multiplier(trace), _change(one))
    # only a reward that comparisons are drawn from says how often one answer wins over another
    wins = not config.reward or config.reward.get("world") is not None
    text = price_text(one.stated.limit, of, wins=wins)
    return {**asdict(of), "win_points": of.win_points if wins else None, "text": text}


def _neighbour(journal: JournalReader, one: HeldLimit, prefix: str) -> dict[str, Any] | None:
    """A policy of the run's last half beyond the limit, nearest to the looser limit that the price is for.

    Its estimate is in the limit's unit; `gain` is its exact helpfulness over the last policy's, None without a world.
    A policy that is known to gain nothing is no choice.
    """
    steps = [step for step in journal.dual_steps() if step.constraint == one.name]
    limit, change, gains = one.stated.limit, _change(one), _gains(journal)
    beyond = {
        step.round: apart
        for step in steps[len(steps) // 2 : -1]
        if 0.0 < (apart := step.estimate.value - limit.cost_limit) <= 2.0 * change and gains.get(step.round, 1.0) > 0.0
    }
    if not beyond:
        return None
    chosen = min(beyond, key=lambda number: abs(beyond[number] - change))
    estimate = next(step.estimate for step in steps if step.round == chosen)
    said = said_of(limit, prefix, estimate, journal.metrics().get(chosen, {}))
    gain = gains.get(chosen)
    helped = "" if gain is None else f", and {gain:.3g} more helpfulness (exact)"
    text = (
        f"the policy of round {chosen} has `{one.name}` {said.measured}{helped}; `pddpo release RUN {chosen} --force`"
    )
    return {"round": chosen, "estimate": said.estimate, "low": said.low, "high": said.high, "gain": gain, "text": text}


def _gains(journal: JournalReader) -> dict[int, float]:
    """Exact helpfulness of every round's policy over the last one's; {} where it is not known."""
    known = {
        number: f for number, values in journal.metrics().items() if (f := values.get("exact/f_policy")) is not None
    }
    return {number: f - known[max(known)] for number, f in known.items()}


def _change(one: HeldLimit) -> float:
    """By how much a looser limit is looser, in the measure's unit."""
    return LOOSER * abs(one.stated.limit.bound.number) or LOOSER * one.scale


def price_text(limit: Limit, of: Price, *, wins: bool = True) -> str:
    """`refuses` at most 6 % in place of 5 % would gain about 0.04 of helpfulness (0.02 to 0.06; ...); without `wins` of
    the reward, whose differences are no odds."""
    if of.gain == 0.0:
        return f"`{limit.name}` does not bind: a looser limit would gain nothing"
    text, bound = limit.quantity.text, limit.bound.number
    looser = bound - of.change if limit.at_least else bound + of.change
    gained, points = "helpfulness" if wins else "the reward", f"; at most {of.win_points:.2g} points of win rate"
    return (
        f"`{limit.name}` at {'least' if limit.at_least else 'most'} {text(looser)} in place of {text(bound)} would gain"
        f" about {of.gain:.3g} of {gained} ({of.low:.3g} to {of.high:.3g}{points if wins else ''})"
    )
