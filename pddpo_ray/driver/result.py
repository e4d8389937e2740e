"""`result.json`: what a finished run has to say, with names that other people's scripts rely on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pddpo_ray.certificates.ledger import Entry, TestedLimit, read_ledger
from pddpo_ray.certificates.outcome import Outcome
from pddpo_ray.config import Config
from pddpo_ray.driver.limits_result import limits_result
from pddpo_ray.journal import JournalReader
from pddpo_ray.parts.held_limit import HeldLimit
from pddpo_ray.records import HARM
from pddpo_ray.scorecard.cards import scorecard_result
from pddpo_ray.scorers.gate import scorers_result
from pddpo_ray.storage.whole_files import RESULT, finite
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
    held: Sequence[HeldLimit],
) -> dict[str, Any]:
    """All keys, always; what a run does not know (no world, no offline comparison) is None."""
    result = {"outcome": outcome.as_json(), **_exact(world, evaluation, offline), **_counts(journal)}
    measured = _measured(journal)
    result["labels_safety"] += measured
    result["labels_used"] += measured + _further_labels(journal, config.compared)
    result["limits"] = limits_result(config, journal, held, world, evaluation)
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
    stated: dict[str, Any] = finite(result)
    return stated


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
    counted = [f"labels/{name}" for name in further] + len(further) * ["labels/pairs"]
    return int(sum(values.get(name, 0.0) for values in _of_rounds(journal) for name in counted))


def _measured(journal: JournalReader) -> int:
    """Labels under stated limits, of all answers that were measured."""
    counted = ((name, value) for values in _of_rounds(journal) for name, value in values.items())
    return int(sum(value for name, value in counted if name.startswith("labels/") and "/measure-" in name))


def _of_certificates(journal: JournalReader) -> int:
    """Labels of the ledger's own draws; a measure that no label gives counts as one. What the rounds drew is theirs."""
    lines = [line for line in read_ledger(journal) if line.candidate.rounds is None]
    return sum(_labels_of(journal, line, one) for line in lines for one in line.candidate.limits)


def _labels_of(journal: JournalReader, line: Entry, limit: TestedLimit) -> int:
    """Where a model measures all draws, people's labels of those that they were shown."""
    if limit.people is None:
        return len(line.draws[limit.name]) * limit.labels_each
    measured = journal.measurements(line.candidate.round, limit=limit.measured_as)
    return sum(one.chance is not None and one.value is not None for one in measured)


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
