"""`result.json`: what a finished run has to say, with names that other people's scripts rely on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pddpo_ray.certificates.ledger import Entry, TestedLimit, read_ledger
from pddpo_ray.certificates.outcome import Outcome, said_of, with_prefixes
from pddpo_ray.config import Config, FixedRule
from pddpo_ray.journal import JournalReader
from pddpo_ray.limits.quantities import Limit
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.parts.held_limit import HeldLimit
from pddpo_ray.parts.limits import ANSWERS
from pddpo_ray.parts.measuring import table_of
from pddpo_ray.parts.people_measuring import bias_of, drawn_evenly
from pddpo_ray.records import HARM
from pddpo_ray.scorecard.cards import scorecard_result
from pddpo_ray.scorers.gate import scorers_result
from pddpo_ray.storage.whole_files import RESULT, finite
from pddpo_ray.theory.multipliers.price import Price, late_multiplier, price
from pddpo_ray.worlds.exact_evaluation import Evaluation, WorldView, covered_best, off_support

WALL = "time/wall"
"""Time from one round's end to the next one's, journal and all; before the first round in round 0."""
START = "time/start"
"""Time until the parts were up, over all processes that worked on the run."""
COMPARISON = "time/comparison"
"""Time of the offline comparison beside an online run."""

CERTIFICATE = "time/certificate"
"""Time of testing policies at the end, over all processes that worked on it."""


def result_of(
    config: Config,
    journal: JournalReader,
    outcome: Outcome,
    world: WorldView | None,
    evaluation: Evaluation | None,
    offline: Evaluation | None = None,
    *,
    held_limits: Sequence[HeldLimit],
) -> dict[str, Any]:
    """All keys, always; what a run does not know (no world, no offline comparison) is None."""
    result = {"outcome": outcome.as_json(), **_exact(world, evaluation, offline), **_counts(journal)}
    count = _count_limit_labels(journal)
    result["labels_safety"] += count
    result["labels_used"] += count + _further_labels(journal, config.compared)
    result["limits"] = limits_result(config, journal, held_limits, world, evaluation)
    first = next(iter(config.thresholds))
    steps = [step for step in journal.dual_steps() if step.constraint == first]
    result["multiplier_optimum"] = result["limits"][first].get("multiplier_optimum")
    last = journal.metrics().get(config.rounds, {})
    result |= {
        "algorithm": config.algorithm,
        "seed": config.seed,
        "rounds": journal.next_round - 1,
        "multiplier": steps[-1].multiplier_before if steps else None,
        "multiplier_next": steps[-1].multiplier_after if steps else None,
        "slope_reward": last.get("fit/slope_reward"),
        "slope_cost": last.get("fit/slope_cost"),
        "scorers": scorers_result(journal),
        "scorecard": scorecard_result(journal),
    }
    content: dict[str, Any] = finite(result)
    return content


def read_result(run_dir: Path) -> dict[str, Any]:
    """result.json of a run's folder, empty where there is none yet."""
    path = run_dir / RESULT
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return stored if isinstance(stored, dict) else {}


def _exact(world: WorldView | None, evaluation: Evaluation | None, offline: Evaluation | None) -> dict[str, Any]:
    """What only a world with a known truth can say."""
    names = (
        "f_reference", "g_reference", "f_offline", "g_offline", "f_mixture", "g_mixture", "f_last", "g_last",
        "f_covered_only", "g_covered_only", "f_optimum", "g_optimum", "multiplier_optimum", "rho",
        "gap_reference", "gap_offline", "gap_covered_only", "gap_mixture", "gap_last",
        "off_support_last", "off_support_offline",
    )  # fmt: skip
    exact: dict[str, Any] = dict.fromkeys(names)
    if world is None or evaluation is None:
        return exact
    oracle = world.oracle
    tables = {"reference": oracle.reference, "mixture": evaluation.mixture(), "last": evaluation.last()}
    if offline is not None:
        tables["offline"] = offline.last()
        exact["off_support_offline"] = off_support(world, tables["offline"])
    for name, table in tables.items():
        exact |= {f"f_{name}": oracle.f(table), f"g_{name}": oracle.g(table), f"gap_{name}": oracle.gap(table)}
    best = oracle.optimum
    exact |= {"f_optimum": best.f, "g_optimum": best.g, "multiplier_optimum": best.multiplier, "rho": oracle.rho}
    covered = covered_best(world)
    if covered is not None:
        exact |= {"f_covered_only": covered.f, "g_covered_only": covered.g}
        exact["gap_covered_only"] = oracle.gap_of(covered.f, covered.g)
    exact["off_support_last"] = off_support(world, tables["last"])
    return exact


def _further_labels(journal: JournalReader, names: Sequence[str]) -> int:
    """Labels under the costs beside harm: their safety labels, and one for each of them on every pair."""
    further = [name for name in names if name != HARM]
    keys = [f"labels/{name}" for name in further] + len(further) * ["labels/pairs"]
    return int(sum(values.get(name, 0.0) for values in _of_rounds(journal) for name in keys))


def _count_limit_labels(journal: JournalReader) -> int:
    """Labels under stated limits, of all answers that were measured."""
    items = ((name, value) for values in _of_rounds(journal) for name, value in values.items())
    return int(sum(value for name, value in items if name.startswith("labels/") and "/measure-" in name))


def _of_certificates(journal: JournalReader) -> int:
    """Labels of the ledger's own draws; a measure without labels counts as one. The rounds' draws are not counted."""
    lines = [line for line in read_ledger(journal) if line.candidate.rounds is None]
    return sum(_labels_of(journal, line, limit) for line in lines for limit in line.candidate.limits)


def _labels_of(journal: JournalReader, line: Entry, limit: TestedLimit) -> int:
    """Labels of a line's draws; where a model measures all draws, only people's."""
    if limit.people is None:
        return len(line.draws[limit.name]) * limit.labels_each
    records = journal.measurements(line.candidate.round, limit=limit.measured_as)
    return sum(record.chance is not None and record.value is not None for record in records)


def _of_rounds(journal: JournalReader) -> list[dict[str, float]]:
    """Metrics by round; the rounds -1, -2, ... are the ledger's candidates."""
    return [values for number, values in journal.metrics().items() if number >= 0]


def _counts(journal: JournalReader) -> dict[str, Any]:
    """Labels, seconds, tokens and delivery checks of the whole run."""
    metrics, certificates = _of_rounds(journal), _of_certificates(journal)

    def total(name: str) -> float:
        return sum(values.get(name, 0.0) for values in metrics)

    seconds: dict[str, float] = {"start": total(START)}
    if comparison := total(COMPARISON):
        seconds["comparison"] = comparison
    for entry in journal.phases():
        # a candidate's batches are phases of the rounds -1, -2, ...
        name = entry.phase if entry.round >= 0 else "certificate"
        seconds[name] = seconds.get(name, 0.0) + entry.seconds
    purposes = ("cost", "candidate", "proposal", "baseline", "calibration", "offline")
    tokens = sum(total(f"rollout/{purpose}_tokens") for purpose in purposes)
    sampling = sum(total(f"rollout/{purpose}_seconds") for purpose in purposes)
    deliveries = journal.deliveries()
    syncs = [values["rollout/sync_seconds"] for values in metrics if "rollout/sync_seconds" in values]
    safety, pairs, scorers = (int(total(f"labels/{name}")) for name in ("safety", "pairs", "scorers"))
    return {
        "labels_used": safety + 2 * pairs + scorers + certificates,
        "labels_certificate": certificates,
        "labels_scorers": scorers,
        "labels_safety": safety,
        "labels_pairs": pairs,
        "seconds": round(seconds["start"] + comparison + total(WALL) + total(CERTIFICATE), 3),
        "seconds_by_phase": {name: round(value, 3) for name, value in seconds.items()},
        "tokens_per_second": tokens / sampling if sampling else None,
        "sync_seconds": sum(syncs) / len(syncs) if syncs else None,
        "weights_verified": bool(deliveries) and all(entry.verified for entry in deliveries),
    }


# --- each stated limit in its own unit, with multiplier, price and, on a world, the truth -----------------------------

LOOSER = 0.2
"""A price is for a limit that is looser by this share of what it allows."""


def limits_result(
    config: Config,
    journal: JournalReader,
    held_limits: Sequence[HeldLimit],
    world: WorldView | None,
    evaluation: Evaluation | None,
) -> dict[str, dict[str, Any]]:
    """What the last finished round says about every limit, by name."""
    steps = {step.constraint: step for step in journal.dual_steps()}
    results: dict[str, dict[str, Any]] = {}
    prefixed = with_prefixes([limit.stated.limit for limit in held_limits])
    for index, (held_limit, (prefix, limit)) in enumerate(zip(held_limits, prefixed, strict=True)):
        quantity = limit.quantity
        entry: dict[str, Any] = {
            "limit": str(limit),
            "kind": quantity.kind,
            "unit": quantity.unit,
            "over": quantity.over,
            "at_least": limit.at_least,
            "bound": limit.bound.number,
            "source": str(held_limit.stated.source),
        }
        if held_limit.name in steps:
            step = steps[held_limit.name]
            estimate = said_of(limit, prefix, step.estimate, journal.metrics().get(step.round, {}))
            entry |= {"estimate": estimate.estimate, "low": estimate.low, "high": estimate.high}
            entry |= {"multiplier": step.multiplier_before, "multiplier_next": step.multiplier_after}
            entry["price"] = _price(config, journal, held_limit)
            entry["neighbour"] = _neighbour(journal, held_limit, prefix)
        if held_limit.stated.audited is not None:
            entry["audit"] = _audit(journal, held_limit.stated, config.dual.cost_max)
        if world is not None and evaluation is not None:
            entry |= _truth(held_limit, index, world, evaluation)
        results[held_limit.name] = entry
    return results


def _audit(journal: JournalReader, stated_limit: StatedLimit, cost_max: float) -> dict[str, Any] | None:
    """How far the machine is off by all of people's labels; None where they gave none."""
    records = journal.measurements(phase=ANSWERS, limit=stated_limit.limit.name)
    table = table_of(records, [stated_limit], list(dict.fromkeys(record.answer for record in records)), cost_max)
    mask = np.isfinite(table.people[:, 0]) & drawn_evenly(stated_limit, table.chance[:, 0])
    bias = bias_of(stated_limit, table.costs[mask, 0], table.people[mask, 0], cost_max)
    count = int((table.chance > 0).sum())
    return None if bias is None else {**asdict(bias), "asked": count, "text": bias.text(stated_limit)}


def _truth(held_limit: HeldLimit, index: int, world: WorldView, evaluation: Evaluation) -> dict[str, float]:
    """Exact values in the limit's unit. The oracle's costs are in ranges of the measure."""
    oracle, limit = world.oracle, held_limit.stated.limit

    def value(g: Sequence[float]) -> float:
        return limit.cost(limit.cost_limit + held_limit.scale * g[index])

    best = oracle.optimum
    tables = {"reference": oracle.reference, "last": evaluation.last(), "mixture": evaluation.mixture()}
    values = {f"value_{name}": value((oracle.g(table), *oracle.further_g(table))) for name, table in tables.items()}
    multiplier = (best.multiplier, *best.further_multipliers)[index] / held_limit.scale
    return values | {"value_optimum": value((best.g, *best.further_g)), "multiplier_optimum": multiplier}


def _price(config: Config, journal: JournalReader, held_limit: HeldLimit) -> dict[str, Any] | None:
    """What a limit costs, from the multipliers of the late rounds; None where the multiplier does not learn."""
    if isinstance(config.duals[held_limit.name].rule, FixedRule):
        return None
    trace = [step.multiplier_after for step in journal.dual_steps() if step.constraint == held_limit.name]
    limit_price = price(*late_multiplier(trace), _change(held_limit))
    # only a reward that comparisons are drawn from says how often one answer wins over another
    wins = not config.reward or config.reward.get("world") is not None
    text = price_text(held_limit.stated.limit, limit_price, wins=wins)
    return {**asdict(limit_price), "win_points": limit_price.win_points if wins else None, "text": text}


def _neighbour(journal: JournalReader, held_limit: HeldLimit, prefix: str) -> dict[str, Any] | None:
    """A policy of the run's last half beyond the limit, nearest to the looser limit that the price is for.

    Its estimate is in the limit's unit; `gain` is its exact helpfulness over the last policy's, None without a world.
    A policy that is known to gain nothing is no choice.
    """
    steps = [step for step in journal.dual_steps() if step.constraint == held_limit.name]
    limit, change, gains = held_limit.stated.limit, _change(held_limit), _gains(journal)
    excesses = {
        step.round: excess
        for step in steps[len(steps) // 2 : -1]
        if 0.0 < (excess := step.estimate.value - limit.cost_limit) <= 2.0 * change and gains.get(step.round, 1.0) > 0.0
    }
    if not excesses:
        return None
    pick = min(excesses, key=lambda number: abs(excesses[number] - change))
    estimate = next(step.estimate for step in steps if step.round == pick)
    stats = said_of(limit, prefix, estimate, journal.metrics().get(pick, {}))
    gain = gains.get(pick)
    detail = "" if gain is None else f", and {gain:.3g} more helpfulness (exact)"
    text = (
        f"the policy of round {pick} has `{held_limit.name}` {stats.measured}{detail};"
        f" `pddpo release RUN {pick} --force`"
    )
    return {"round": pick, "estimate": stats.estimate, "low": stats.low, "high": stats.high, "gain": gain, "text": text}


def _gains(journal: JournalReader) -> dict[int, float]:
    """Exact helpfulness of every round's policy over the last one's; {} where it is not known."""
    helpfulness = {
        number: f for number, values in journal.metrics().items() if (f := values.get("exact/f_policy")) is not None
    }
    return {number: f - helpfulness[max(helpfulness)] for number, f in helpfulness.items()}


def _change(held_limit: HeldLimit) -> float:
    """By how much a looser limit is looser, in the measure's unit."""
    return LOOSER * abs(held_limit.stated.limit.bound.number) or LOOSER * held_limit.scale


def price_text(limit: Limit, of: Price, *, wins: bool = True) -> str:
    """`refuses` at most 6 % in place of 5 % would gain about 0.04 of helpfulness (0.02 to 0.06; ...); without `wins` of
    the reward, whose differences are no odds."""
    if of.gain == 0.0:
        return f"`{limit.name}` does not bind: a looser limit would gain nothing"
    text, bound = limit.quantity.text, limit.bound.number
    looser = bound - of.change if limit.at_least else bound + of.change
    unit, points = "helpfulness" if wins else "the reward", f"; at most {of.win_points:.2g} points of win rate"
    return (
        f"`{limit.name}` at {'least' if limit.at_least else 'most'} {text(looser)} in place of {text(bound)} would gain"
        f" about {of.gain:.3g} of {unit} ({of.low:.3g} to {of.high:.3g}{points if wins else ''})"
    )
