"""The trainer as the methods see it: an objective and rows in, a stored version out.

It turns a fit into a command that holds everything (start weights, rows, settings, seed), so that a backend that died
in the middle gives the same version when it is asked again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np

from pddpo_ray.config import (
    DeterminantRefit,
    FitConfig,
    GeometricRefit,
    Refit,
    TrainerConfig,
    UnionRefit,
)
from pddpo_ray.config.sections.trainer import Stage
from pddpo_ray.contracts import (
    EarlyTrainer,
    FitCommand,
    FitResult,
    FitSettings,
    Start,
    TrainerBackend,
)
from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal, VersionEntry
from pddpo_ray.records import Array, LossOptimism, Objective, PairRow, PolicyVersion, Response
from pddpo_ray.theory.multipliers.cost_stage import skips_cost_stage
from pddpo_ray.theory.refit import full_rounds, is_power, limit_rows
from pddpo_ray.theory.seeds import generator, seed_of

logger = logging.getLogger(__name__)

Fit = TypeVar("Fit", bound=FitConfig)
LARGEST_CALL = 4096
"""Most answers in one call of the backend: a call has a deadline, and a lost one is repeated."""
FACTOR = 2.0
"""Ratio between the rounds that see all pairs under `refit: {kind: geometric}`: at most twice the last one's rows."""
GROWTH = 1.0
"""The design matrix's determinant must have grown by 1 + this under `refit: {kind: determinant}`: doubled."""
MOVED_LITTLE = 0.05
"""Share of the policy's numbers that a fit should change at least, as they are published; below, a warning."""
DISPLACED = 1.0
"""Nats by which both sides of a fit's pairs may fall, on average over pairs, before a warning."""
OVERSHOT = 2.0
"""How many times its first step's loss a fit may end with before a warning."""
CARRY_MAX = 2.0
"""Largest factor on the carried cost part, so that a multiplier that rises from almost 0 does not blow it up."""


@dataclass(frozen=True)
class FitPlan:
    """The recipe's sections about fits, and what a run adds to them."""

    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    skip_below: float = 0.0
    """At or below this multiplier the policy is its base: the exact limit at 0 (paper.md §6)."""
    rounds: int = 1
    alpha: float = 0.0
    """Weight of the XPO-style term in the last cost fit of a round; 0: none."""

    def settings(self, stage: Literal["reward", "cost"], first: bool, round_: int) -> FitSettings:
        """The stage's section, at the learning rate of the round."""
        trainer = self.trainer
        of_round_1: Mapping[Stage, Stage] = {"reward": "first_reward", "cost": "first_cost"}
        section = trainer.of_stage(of_round_1[stage] if first else stage)
        progress = min(max((round_ - 1) / max(1, self.rounds - 1), 0.0), 1.0)
        rate = section.learning_rate * (1.0 - (1.0 - trainer.last_rate) * progress)
        shared_settings = trainer.model_dump(include={"micro_pairs", "activation_gib", "support", "held_out"})
        return FitSettings(**{**section.model_dump(), **shared_settings, "learning_rate": rate})


class TrainerController:
    """Fits policies one after another and journals them. `constraints` is the number of cost fits in a round.

    `baseline` gives the baseline's answers, which only the XPO-style term asks for (`FitPlan.alpha`).
    """

    def __init__(
        self,
        backend: TrainerBackend,
        journal: Journal,
        plan: FitPlan,
        *,
        seed: int,
        constraints: int = 1,
        baseline: Callable[[], Sequence[Response]] = tuple,
    ) -> None:
        self._backend = backend
        self._journal = journal
        self._plan = plan
        self._seed = seed
        self._constraints = constraints
        self._baseline = baseline
        self._cost_fits: dict[int, int] = {}

    def fit(self, objective: Objective, rows: Sequence[PairRow]) -> PolicyVersion:
        """The round's next policy: after the reward fit one cost fit per constraint, each on the last one's result.

        Raises RunError if there is nothing to learn from or the backend made something else than it was asked for.
        """
        link = 0
        if objective.stage == "cost":
            link = self._cost_fits[self._journal.round] = self._cost_fits.get(self._journal.round, 0) + 1
        phase = f"fit-{objective.stage}" if link < 2 else f"fit-{objective.stage}-{link}"
        return self._version(self._journal.once(phase, lambda: self._fit(objective, rows, link))["version"])

    def begin(self, objective: Objective, rows: Sequence[PairRow]) -> None:
        """Starts the next round's reward fit, if the backend can work while labels are waited for; `fit` collects it.

        Without this call the version is the same, only later. After the last round there is nothing to start.
        """
        if isinstance(self._backend, EarlyTrainer) and self._journal.round < self._plan.rounds:
            self._backend.begin(self._command(objective, rows, 0, self._journal.round + 1))

    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array:
        """log pi(y|x), summed over the response tokens. -> [n]"""
        return _in_parts(lambda part: self._backend.log_probs(policy, part), responses, "log-probabilities")

    def features(self, responses: Sequence[Response]) -> Array:
        """Features of the frozen reference. -> [n, h]"""
        return _in_parts(self._backend.features, responses, "features")

    def _fit(self, objective: Objective, rows: Sequence[PairRow], link: int) -> dict[str, Any]:
        round_, multiplier = self._journal.round, objective.multiplier
        if multiplier is not None and skips_cost_stage(multiplier, below=self._plan.skip_below):
            # The base itself under a number of its own: every round has a policy.
            name = self._name(objective, link, round_)
            result = FitResult(replace(objective.base, number=self._next_number(), name=name), {"fit/skipped": 1.0})
        else:
            command = self._command(objective, rows, link, round_)
            result = self._execute(command)
            _warn_of_doubtful_fit(command, result.metrics)
        self._journal.add_version(
            result.version,
            objective.stage,
            result.metrics,
            result.workers,
            base=objective.base.number,
            multiplier=multiplier,
        )
        prefix = objective.stage if link < 2 else f"{objective.stage}_{link}"
        self._journal.add_metrics({f"fit/{prefix}_{key.removeprefix('fit/')}": v for key, v in result.metrics.items()})
        return {"version": result.version.number, "curve": dict(result.curve)}

    def _version(self, number: int) -> PolicyVersion:
        return next(entry.version for entry in self._journal.versions() if entry.version.number == number)

    def _next_number(self) -> int:
        return max((entry.version.number for entry in self._journal.versions()), default=0) + 1

    def _name(self, objective: Objective, link: int, round_: int) -> str:
        if objective.stage == "reward":
            return f"reward-{round_}"
        last = link == self._constraints
        return f"policy-{round_}" if last else f"policy-{round_}-{link}"

    def _command(self, objective: Objective, rows: Sequence[PairRow], link: int, round_: int) -> FitCommand:
        if not rows:
            raise RunError(
                f"round {round_}: there is no usable {objective.stage} pair to fit; check the labels that abstained or"
                " failed"
            )
        entries = self._journal.versions()
        previous = previous_fit(entries, objective.stage, link)
        kept_rows, margins = self._rows(objective, rows, link, round_)
        start = start_of(objective, previous, {e.version.number: e.version for e in entries}, self._plan)
        carried = self._plan.trainer.moments == "carried"
        if carried and previous is not None and "fit/skipped" not in previous.metrics:
            start = replace(start, moments=previous.version)
        return FitCommand(
            sequence=self._next_number(),
            start=start,
            objective=replace(objective, margins=margins),
            rows=kept_rows,
            settings=with_steps(self._plan.settings(objective.stage, previous is None, round_), len(kept_rows)),
            seed=seed_of(self._seed, round_, objective.stage, link, "fit"),
            result=self._name(objective, link, round_),
            optimism=self._optimism(link),
            keeps_moments=carried,
        )

    def _rows(
        self, objective: Objective, rows: Sequence[PairRow], link: int, round_: int
    ) -> tuple[tuple[PairRow, ...], tuple[float, ...]]:
        """What the round's fit sees: rows with their margins."""
        all_rows, margins = tuple(rows), tuple(objective.margins)
        newest = max(row.round for row in all_rows)
        metrics = self._journal.metrics().items()
        logdets = {number: values["explore/logdet"] for number, values in metrics if "explore/logdet" in values}
        refit, new = self._plan.trainer.refit, sum(row.round == newest for row in all_rows)
        draws = generator(self._seed, round_, objective.stage, link, "replay")
        return limit_rows(all_rows, margins, older_rows(refit, round_, new, logdets), draws)

    def _optimism(self, link: int) -> LossOptimism | None:
        """The XPO-style term, in the fit that makes the round's policy: it is optimistic for reward minus all costs."""
        if self._plan.alpha == 0 or link != self._constraints:
            return None
        answers = tuple((answer.prompt.token_ids, answer.token_ids) for answer in self._baseline())
        if not answers:
            raise RunError("the XPO-style term needs answers of the baseline; there are none")
        return LossOptimism(self._plan.alpha, answers)

    def _execute(self, command: FitCommand) -> FitResult:
        result = self._backend.execute(command)
        identity = (result.version.number, result.version.name)
        if identity != (command.sequence, command.result):
            raise RunError(f"the trainer was asked for {command.result} ({command.sequence}) and returned {identity}")
        return result


def older_rows(refit: Refit, round_: int, new: int, logdets: Mapping[int, float]) -> int | None:
    """Most rows of earlier rounds that the fits of a round see; None: all of them.

    `new`: rows of the newest round; `logdets`: log determinant of the design after each round.
    """
    match refit:
        case UnionRefit():
            return None
        case GeometricRefit() if is_power(round_, FACTOR):
            return None
        case DeterminantRefit() if round_ in full_rounds(GROWTH, round_, logdets):
            return None
    return refit.rows + math.ceil(refit.per_new * new)


def with_steps(settings: Fit, rows: int) -> Fit:
    """The settings with their epochs turned into steps over a number of rows; unchanged where steps are given."""
    if settings.epochs is None:
        return settings
    steps = max(1, math.ceil(settings.epochs * rows / settings.batch_pairs))
    return settings.model_copy(update={"steps": steps, "epochs": None})


def previous_fit(entries: Sequence[VersionEntry], stage: str, link: int) -> VersionEntry | None:
    """Last round's fit of the same stage (and constraint, by its link in the chain); None before the first."""
    by_round: dict[int, list[VersionEntry]] = {}
    for entry in entries:
        # A cost fit from before the first round made a score, not a policy.
        if entry.stage == stage and (stage == "reward" or entry.round > 0):
            by_round.setdefault(entry.round, []).append(entry)
    full = [fits for fits in by_round.values() if len(fits) >= max(link, 1)]
    return full[-1][max(link, 1) - 1] if full else None


def start_of(
    objective: Objective, previous: VersionEntry | None, versions: Mapping[int, PolicyVersion], plan: FitPlan
) -> Start:
    """Where a fit begins. A reward fit starts from the last one; a cost fit as the plan's warm start says."""
    if previous is None or (objective.stage == "cost" and plan.trainer.warm_start == "reward"):
        return Start(objective.base)
    if objective.stage == "reward" or plan.trainer.warm_start == "previous":
        return Start(previous.version)
    before, now = previous.multiplier or 0.0, objective.multiplier or 0.0
    if skips_cost_stage(before, below=plan.skip_below) or previous.base is None:
        # Last round had no cost part to carry.
        return Start(objective.base)
    scale = min(now / before, CARRY_MAX)
    return Start(objective.base, plus=previous.version, minus=versions[previous.base], scale=scale)


def _in_parts(compute: Callable[[Sequence[Response]], Array], responses: Sequence[Response], quantity: str) -> Array:
    """`compute` of all answers, at most `LARGEST_CALL` in a call. -> [n, ...]"""
    parts = []
    for begin in range(0, max(1, len(responses)), LARGEST_CALL):
        part = responses[begin : begin + LARGEST_CALL]
        values = compute(part)
        if len(values) != len(part):
            raise RunError(f"the trainer was asked for {quantity} of {len(part)} answers and returned {len(values)}")
        parts.append(values)
    return np.concatenate(parts)


def _warn_of_doubtful_fit(command: FitCommand, metrics: Mapping[str, float]) -> None:
    """Warns of a doubtful fit: weights hardly moved, both sides of its pairs fell, the loss grew, or the held-out
    pairs' loss did not fall."""
    stage, result = command.objective.stage, command.result
    moved = metrics.get("fit/moved", 1.0)
    if moved < MOVED_LITTLE:
        logger.warning(
            "%s: the fit changed %.2g %% of the policy's numbers as they are published (below %g %%) at learning rate"
            " %g: raise the %s stage's learning_rate or steps in trainer, or set model.dtype=float32",
            *(result, 100 * moved, 100 * MOVED_LITTLE, command.settings.learning_rate, stage),
        )
    better, worse = metrics.get("fit/better", 0.0), metrics.get("fit/worse", 0.0)
    if max(better, worse) < -DISPLACED:
        logger.warning(
            "%s: better and worse answers both became less likely, by %.1f and %.1f nats (likelihood displacement): its"
            " texts are in no pair. Lower the %s stage's learning_rate or epochs in trainer, or give it more prompts"
            " with fewer pairs each",
            *(result, -better, -worse, stage),
        )
    first, last = metrics.get("fit/loss_at_start", math.inf), metrics.get("fit/loss", 0.0)
    if last > OVERSHOT * first:
        logger.warning(
            "%s: the %s stage ended with a loss of %.3g and began with %.3g: its steps overshoot. Lower its"
            " learning_rate in trainer",
            *(result, stage, last, first),
        )
    start, end = metrics.get("fit/held_out_start"), metrics.get("fit/held_out_loss")
    if start is not None and end is not None and end >= start:
        logger.warning(
            "%s: the %s stage learned nothing that holds on prompts that it did not see: their loss was %.3g and is"
            " %.3g at its best. Lower its learning_rate in trainer, or give it more prompts",
            *(result, stage, start, end),
        )
