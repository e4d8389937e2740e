"""A run from its resolved recipe to `result.json`: journal, backends, parts, page, evaluation.

    result = run_recipe(config, Path("runs/demo"), resume=False)

The same function serves every way to run: `make_backends` decides whether the work is done in this process (the
default) or by Ray groups.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from pddpo_ray.algorithms import (
    c_dpo,
    caid,
    dpo_harmless,
    dpo_helpful,
    mocan,
    o_pd_dpo,
    o_pd_dpo_paper,
    p_sacpo,
    pd_dpo,
    pd_dpo_adalag,
    pd_dpo_fixed,
    pecan,
    sacpo,
    safe_dpo,
    safe_rlhf,
)
from pddpo_ray.config import Config, FeedbackCommon, TabularWorldConfig, WorldFeedback
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal, JournalEvent
from pddpo_ray.loop import in_process
from pddpo_ray.loop.backends import Backends
from pddpo_ray.loop.build import build_parts, sizes_of
from pddpo_ray.loop.outcome import outcome_of
from pddpo_ray.loop.release import decide as decide_release
from pddpo_ray.loop.result import COMPARISON, START, WALL, result_of
from pddpo_ray.records import LabelledPair
from pddpo_ray.storage.disk import explain_full_disk
from pddpo_ray.storage.folders import JOURNAL, RESULT
from pddpo_ray.storage.whole_files import write_json
from pddpo_ray.worlds.exact_evaluation import Evaluation

logger = logging.getLogger("pddpo_ray.loop.run")

METHODS: Mapping[str, ModuleType] = {
    "o-pd-dpo": o_pd_dpo,
    "o-pd-dpo-paper": o_pd_dpo_paper,
    "pd-dpo": pd_dpo,
    "pd-dpo-fixed": pd_dpo_fixed,
    "pd-dpo-adalag": pd_dpo_adalag,
    "dpo-harmless": dpo_harmless,
    "dpo-helpful": dpo_helpful,
    "safe-dpo": safe_dpo,
    "sacpo": sacpo,
    "p-sacpo": p_sacpo,
    "mocan": mocan,
    "pecan": pecan,
    "c-dpo": c_dpo,
    "caid": caid,
    "safe-rlhf": safe_rlhf,
}
OFFLINE = "offline"


# --- what a person sees while it runs -----------------------------------------------------------------------------


@dataclass(frozen=True)
class RunStarted:
    """The parts come up; `rounds` counts those still to do."""

    run: str
    algorithm: str
    rounds: int
    total: int


@dataclass(frozen=True)
class PhaseChanged:
    """A phase began, ended or was read back; `run` tells the offline comparison from the run itself."""

    run: str
    event: JournalEvent


@dataclass(frozen=True)
class RoundFinished:
    """One round is complete, with its numbers by name."""

    run: str
    round: int
    total: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    message: str | None = None


@dataclass(frozen=True)
class RunFinished:
    """The run is complete."""

    run: str
    result: Mapping[str, Any]


Event = RunStarted | PhaseChanged | RoundFinished | RunFinished
Progress = Callable[[Event], None]
MakeBackends = Callable[[Config, Path], Backends]


# --- the run ------------------------------------------------------------------------------------------------------


def run_recipe(
    config: Config,
    run_dir: Path,
    *,
    resume: bool = False,
    make_backends: MakeBackends | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Runs a recipe to its end, from the beginning or from where its journal stops, and returns `result.json`.

    Raises UserError if the folder holds a run already (or, with `resume`, none, or one of another recipe), RunError if
    a delivery check or a deadline fails on the way.
    """
    run_dir = Path(run_dir).absolute()
    place = config.journal or run_dir / JOURNAL
    _demand_place(run_dir, place, resume)
    tell: Progress = progress or (lambda event: None)
    with explain_full_disk(run_dir), _open_journal(config, place, run_dir.name, tell) as journal:
        if journal.is_new == resume:
            # Only a server's journal gets here: it may know runs whose folder is not on this machine.
            state = "there is no run called {}" if resume else "run {} has begun already"
            advice = "leave --resume out" if resume else "continue it with --resume, or choose another --run"
            raise UserError(f"{state.format(journal.run_id)}: {advice}")
        tell(RunStarted(journal.run_id, config.algorithm, config.rounds - journal.next_round + 1, config.rounds))
        began = time.monotonic()
        backends = (make_backends or in_process.make_backends)(config, run_dir)
        try:
            _add_seconds(journal, START, time.monotonic() - began)
            began = time.monotonic()
            alone = _compare_offline(config, place, run_dir.name, backends, tell)
            if alone is not None:
                _add_seconds(journal, COMPARISON, time.monotonic() - began)
            begin_with = backends if alone is None else replace(backends, offline=lambda seed: list(alone.pairs))
            evaluation = drive(config, journal, begin_with, tell)
            offline = None if alone is None else alone.evaluation
            tables = isinstance(config.world, TabularWorldConfig)
            outcome = outcome_of(journal, config.thresholds, run_dir, tables=tables)
            result = result_of(config, journal, outcome, backends.world, evaluation, offline)
        finally:
            backends.close()
        write_json(run_dir / RESULT, result)
        tell(RunFinished(journal.run_id, result))
        return result


def drive(
    config: Config, journal: Journal, backends: Backends, tell: Progress, *, every_round: bool = True
) -> Evaluation | None:
    """Runs the recipe's page over its parts. Returns the evaluation where the world is known."""
    page = METHODS[config.algorithm]
    began = time.monotonic()
    parts = build_parts(config, journal, backends, rounds=config.rounds, online=config.online)
    evaluation = None if backends.world is None else Evaluation(backends.world, journal, backends.store)
    _add_seconds(journal, WALL, time.monotonic() - began)
    began = time.monotonic()

    def close_round(number: int) -> None:
        nonlocal began
        if evaluation is not None and (every_round or number == config.rounds):
            evaluation.close_round(number)
        if every_round:
            # The offline comparison, which is evaluated once, releases nothing.
            decision = decide_release(journal, parts.trainer, config.thresholds, number)
            logger.info("round %d %s: %s", number, "released" if decision.released else "kept back", decision.reason)
        now = time.monotonic()
        seconds = {f"time/{entry.phase}": entry.seconds for entry in journal.phases(number)}
        limit = next(iter(config.thresholds.values()))
        journal.add_metrics({**seconds, WALL: now - began, "cost/limit": limit})
        began = now
        metrics = journal.metrics().get(number, {})
        if parts.dual.message:
            logger.warning("%s: %s", journal.run_id, parts.dual.message)
        tell(RoundFinished(journal.run_id, number, config.rounds, metrics, parts.dual.message))

    journal.closing.append(close_round)
    page.run(parts, sizes_of(config, config.rounds), backends.reference)
    return evaluation


@dataclass(frozen=True)
class _Alone:
    """Offline PD-DPO beside an online run, and the pairs that both begin with."""

    evaluation: Evaluation | None
    pairs: tuple[LabelledPair, ...]


def _compare_offline(
    config: Config, place: str | Path, run_id: str, backends: Backends, tell: Progress
) -> _Alone | None:
    """PD-DPO on the offline pairs alone, where the recipe asks for it: the same backends, a journal of its own."""
    rounds = config.offline.compare_rounds
    if not rounds or not config.online or backends.world is None:
        return None
    trainer, reward, cost = config.trainer, config.offline.compare_reward, config.offline.compare_cost
    fits = {
        "first_reward": reward or trainer.first_reward,
        "first_cost": cost or trainer.first_cost,
        "cost": cost or trainer.cost,
    }
    # Nobody is asked for the comparison's labels: they come from the world, whoever labels the run itself.
    truth = WorldFeedback(**config.feedback.model_dump(include=set(FeedbackCommon.model_fields)))
    alone = config.model_copy(
        update={"algorithm": "pd-dpo", "rounds": rounds, "feedback": truth, "trainer": trainer.model_copy(update=fits)}
    )
    with _open_journal(alone, place, f"{run_id}-{OFFLINE}", tell) as journal:
        evaluation = drive(alone, journal, backends, tell, every_round=False)
        return _Alone(evaluation, tuple(entry.labelled for entry in journal.pairs(0)))


def _open_journal(config: Config, place: str | Path, run_id: str, tell: Progress) -> Journal:
    return Journal.open(
        place,
        run_id,
        create=config.model_dump(mode="json"),
        fixed=config.fixed_settings(),
        listener=lambda event: tell(PhaseChanged(run_id, event)),
    )


def _demand_place(run_dir: Path, place: str | Path, resume: bool) -> None:
    """A new run needs a folder without one, a resumed run one with it. A server's journal is looked at when open."""
    there = isinstance(place, Path) and place.exists()
    if resume and isinstance(place, Path) and not there:
        raise UserError(f"there is no run in {run_dir} to resume: leave --resume out, or give the folder of a run")
    if there and not resume:
        raise UserError(f"{run_dir} holds a run already: continue it with --resume, or choose another --run")
    run_dir.mkdir(parents=True, exist_ok=True)


def _add_seconds(journal: Journal, name: str, seconds: float) -> None:
    """Adds to a time that counts over all processes that worked on the run."""
    before = journal.metrics().get(journal.round, {}).get(name, 0.0)
    journal.add_metrics({name: before + seconds})
