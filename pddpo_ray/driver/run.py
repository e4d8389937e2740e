"""A run from its resolved recipe to `result.json`: journal, backends, parts, method, evaluation.

    result = run_recipe(config, Path("runs/demo"), resume=False)

The same function serves every way to run: `make_backends` decides whether the work is done in this process (the
default) or by Ray groups.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pddpo_ray.backends import in_process
from pddpo_ray.backends.backends import Backends
from pddpo_ray.backends.machine import inspect_machine
from pddpo_ray.backends.preflight import new_run, resumed_run
from pddpo_ray.backends.settled import driver_device, settled
from pddpo_ray.certificates.outcome import SCALE, estimates_of, note_unsafe_rates, outcome_of, with_prefixes
from pddpo_ray.certificates.release import certify_at_end
from pddpo_ray.certificates.round_draws import add_draws_of_round, enter_mixtures
from pddpo_ray.config import Config
from pddpo_ray.driver.build import build_parts, demand_startable, sizes_of
from pddpo_ray.driver.prepare import prepare
from pddpo_ray.driver.provenance import extensions_of, provenance_of, sitting
from pddpo_ray.driver.result import CERTIFICATE, COMPARISON, START, WALL, result_of
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal import Journal, JournalEvent
from pddpo_ray.journal.identity import home_of, keep_identity
from pddpo_ray.journal.withdrawing import erase_withdrawn
from pddpo_ray.records import LabelledPair
from pddpo_ray.registry import code_of
from pddpo_ray.scorecard.cards import cards
from pddpo_ray.storage.whole_files import JOURNAL, RESULT, explain_disk, write_json
from pddpo_ray.training.device import loaded_on
from pddpo_ray.worlds.exact_evaluation import Evaluation

logger = logging.getLogger("pddpo_ray.driver.run")

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
    limits: tuple[str, ...] = ()
    """What the round's labels say about every limit, in its own unit."""
    notes: tuple[str, ...] = ()
    """What the scorecard warns of."""


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
    a delivery check or a deadline fails on the way or the disk is full.
    """
    run_dir, name = Path(run_dir).absolute(), Path(run_dir).absolute().name
    config = settled(config, inspect_machine())
    fixed = config.fixed_settings()
    with explain_disk(run_dir):
        run_id, shared = resumed_run(config, run_dir) if resume else (new_run(config, run_dir), fixed)
    tell: Progress = progress or (lambda event: None)
    with (
        _left_as_it_was(run_dir, resume) as begun,
        explain_disk(run_dir),
        loaded_on(driver_device(config, config.model.device)),
        _open_journal(config, run_dir, run_id, name, shared, tell) as journal,
    ):
        recipe = config.model_dump(mode="json")
        journal.note_sitting(sitting(extensions_of(config)), home_of(run_dir), recipe=recipe, fixed=fixed)
        if config.journal is not None:
            keep_identity(run_dir, run_id)
        enter_mixtures(config, journal)
        tell(RunStarted(name, config.algorithm, config.rounds - journal.next_round + 1, config.rounds))
        began = time.monotonic()
        backends = (make_backends or in_process.make_backends)(config, run_dir)
        try:
            demand_startable(config, backends)
            begun()
            _add_seconds(journal, START, time.monotonic() - began)
            began = time.monotonic()
            alone = _compare_offline(config, run_dir, run_id, backends, tell)
            if alone is not None:
                _add_seconds(journal, COMPARISON, time.monotonic() - began)
            begin_with = backends if alone is None else replace(backends, offline=lambda seed: list(alone.pairs))
            journal.closing.append(partial(add_draws_of_round, config, journal))
            evaluation = drive(config, journal, begin_with, tell, name)
            offline = None if alone is None else alone.evaluation
            began = time.monotonic()
            certify_at_end(config, run_dir, journal, backends)
            journal.round = config.rounds
            _add_seconds(journal, CERTIFICATE, time.monotonic() - began)
            outcome = outcome_of(
                journal, config.typed_limits, run_dir, policies=config.policies, temperature=config.policy.temperature
            )
            result = result_of(
                config, journal, outcome, backends.world, evaluation, offline, held_limits=backends.held_limits
            )
            result["provenance"] = provenance_of(config, journal)
        finally:
            backends.close()
        write_json(run_dir / RESULT, result)
        tell(RunFinished(name, result))
        return result


def drive(
    config: Config, journal: Journal, backends: Backends, tell: Progress, name: str, *, every_round: bool = True
) -> Evaluation | None:
    """Runs the recipe's method over its parts. Returns the evaluation where the world is known."""
    run_method = code_of("methods", config.algorithm)
    began = time.monotonic()
    parts = build_parts(config, journal, backends, rounds=config.rounds, online=config.online)
    evaluation = None if backends.world is None else Evaluation(backends.world, journal, backends.store)
    prepared = False
    limits = config.typed_limits
    prefixes = with_prefixes(limits)

    def close_round(number: int) -> None:
        nonlocal began
        if evaluation is not None and (every_round or number == config.rounds):
            evaluation.close_round(number)
        note_unsafe_rates(journal, limits, number)
        now = time.monotonic()
        seconds = {f"time/{entry.phase}": entry.seconds for entry in journal.phases(number)}
        scales = {
            f"{prefix}{SCALE}": limit.scale for (prefix, _), limit in zip(prefixes, backends.held_limits, strict=False)
        }
        journal.add_metrics({**seconds, **scales, WALL: now - began, "cost/limit": limits[0].cost_limit})
        began = now
        metrics = journal.metrics().get(number, {})
        if parts.dual.message:
            logger.warning("%s: %s", name, parts.dual.message)
        lines = tuple(estimate.brief for estimate in estimates_of(journal, limits, number))
        notes = tuple(cards(journal).get(number, {}).get("notes", ()))
        tell(RoundFinished(name, number, config.rounds, metrics, parts.dual.message, lines, notes))

    def forget(number: int) -> None:
        erase_withdrawn(journal.engine, journal.run_id, through=number)

    def prepare_once() -> None:
        nonlocal began, prepared
        prepare(config, journal, backends, parts, online=config.online)
        forget(journal.next_round - 1)
        _add_seconds(journal, WALL, time.monotonic() - began)
        began, prepared = time.monotonic(), True

    closings = [] if parts.scorecard is None else [parts.scorecard.close_round]
    journal.closing += [*closings, close_round, forget]
    run_method(replace(parts, prepare=prepare_once), sizes_of(config, config.rounds), backends.reference)
    if not prepared:
        raise RunError(f"method {config.algorithm} never called parts.prepare(), its first line: no pair was read")
    return evaluation


@dataclass(frozen=True)
class _Alone:
    """Offline PD-DPO beside an online run, and the pairs that both begin with."""

    evaluation: Evaluation | None
    pairs: tuple[LabelledPair, ...]


def _compare_offline(config: Config, run_dir: Path, run_id: str, backends: Backends, tell: Progress) -> _Alone | None:
    """PD-DPO on the offline pairs alone, where the recipe asks for it: the same backends, a journal of its own."""
    rounds = config.offline.compare_rounds
    if not rounds or not config.online or backends.world is None:
        return None
    # Nobody is asked for the comparison's labels: they come from the world, whoever labels the run itself.
    recipe = config.labelled_by_world().model_copy(
        update={"algorithm": "pd-dpo", "rounds": rounds, "trainer": config.trainer.alone}
    )
    if config.scorecard_prompts:
        recipe = recipe.model_copy(update={"scorecard": config.scorecard.model_copy(update={"prompts": 0})})
    limits = [replace(limit, stated=entry) for limit, entry in zip(backends.held_limits, recipe.stated, strict=True)]
    backends = replace(backends, held_limits=limits)
    offline_id, name, fixed = f"{run_id}-{OFFLINE}", f"{run_dir.name}-{OFFLINE}", recipe.fixed_settings()
    with _open_journal(recipe, run_dir, offline_id, name, fixed, tell, part_of=run_id) as journal:
        evaluation = drive(recipe, journal, backends, tell, name, every_round=False)
        return _Alone(evaluation, tuple(entry.labelled for entry in journal.pairs(0)))


def _open_journal(
    config: Config, run_dir: Path, run_id: str, name: str, shared: Any, tell: Progress, part_of: str | None = None
) -> Journal:
    """The journal to write; `shared` is what a run that has begun already must have as its fixed settings."""
    run_dir.mkdir(parents=True, exist_ok=True)
    return Journal.open(
        config.journal or run_dir / JOURNAL,
        run_id,
        create=config.model_dump(mode="json"),
        fixed=shared,
        listener=lambda event: tell(PhaseChanged(name, event)),
        name=name,
        part_of=part_of,
    )


@contextmanager
def _left_as_it_was(run_dir: Path, resume: bool) -> Iterator[Callable[[], None]]:
    """A new run that fails on a user's mistake before it has begun leaves nothing in its folder.

    Yields what is called once it has begun.
    """
    paths = set(run_dir.iterdir()) if run_dir.is_dir() else None
    has_begun = resume

    def begun() -> None:
        nonlocal has_begun
        has_begun = True

    try:
        yield begun
    except UserError:
        if not has_begun and run_dir.is_dir():
            for path in set(run_dir.iterdir()) - (paths or set()):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            if paths is None:
                run_dir.rmdir()
        raise


def _add_seconds(journal: Journal, name: str, seconds: float) -> None:
    """Adds to a time that counts over all processes that worked on the run."""
    total = journal.metrics().get(journal.round, {}).get(name, 0.0)
    journal.add_metrics({name: total + seconds})
