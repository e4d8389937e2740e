"""A run under stated limits: their stages, the measured answers that teach and estimate them, and the joint dual step.

Limits on comparisons (logit) have a cost stage each, as in the paper; all limits on measured values (rate, mean) share
one stage after those. Every answer that was measured, before the first round, for the estimates or in an explored pair,
teaches in all later rounds, since a measure belongs to the answer alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pddpo_ray.contracts import Measure, Preferences, Trainer
from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.loop.dual_step import DualController
from pddpo_ray.loop.joint_dual import JointDual
from pddpo_ray.loop.outcome import UNSAFE_RATE
from pddpo_ray.records import Array, CostEstimate, Objective, Pair, PolicyVersion, Prompt, Response
from pddpo_ray.theory.cost_stage import cost_temperature
from pddpo_ray.theory.measured_pairs import MeasuredAnswer, Tokens, estimates_on_sets, value_pairs, with_repeated_noise
from pddpo_ray.theory.seeds import seed_of
from pddpo_ray.theory.value_stage import value_scale

logger = logging.getLogger(__name__)

ANSWERS, PAIRS, OFFLINE = "measure-answers", "measure-pairs", "measure-offline"
MODES = {"rate": "unsafe_rate", "mean": "cost_model", "logit": "logit_labels", "kl": "cost_model"}
ANSWERS_EACH = 2
"""Answers per prompt for the estimates: two tell the variance within a prompt, and are a pair to learn from."""


@dataclass(frozen=True, eq=False)
class HeldLimit:
    """One limit of a run: as it is stated, the length of its measure's range, and which prompts it acts on."""

    stated: StatedLimit
    scale: float
    factors: Mapping[Tokens, float]
    """P_s / P_0 by the prompt's tokens."""

    @property
    def name(self) -> str:
        return self.stated.limit.name

    @property
    def by_comparisons(self) -> bool:
        return self.stated.limit.quantity.kind == "logit"


def held_limits(
    stated: Sequence[StatedLimit], scales: Sequence[float], factors: Array, prompts: Sequence[Prompt]
) -> tuple[HeldLimit, ...]:
    """Limits with the ranges of their measures [I] and P_s / P_0 of every prompt [I, X]."""
    ids = [prompt.token_ids for prompt in prompts]
    return tuple(
        HeldLimit(one, scale, dict(zip(ids, row.tolist(), strict=True)))
        for one, scale, row in zip(stated, scales, factors, strict=True)
    )


class LimitsController:
    """What the methods do with stated limits. `window` answers count for adaLag's estimates (None: the round's own)."""

    def __init__(
        self,
        journal: Journal,
        limits: Sequence[HeldLimit],
        measure: Measure,
        dual: JointDual,
        steps: DualController,
        *,
        beta: float,
        seed: int,
        window: int | None = None,
    ) -> None:
        self._journal, self._limits, self._measure, self._dual, self._steps = (
            journal,
            tuple(limits),
            measure,
            dual,
            steps,
        )
        self._beta, self._seed, self._window = beta, seed, window
        prompts = limits[0].factors
        self._factors = {prompt: np.array([one.factors[prompt] for one in limits]) for prompt in prompts}
        self._measured: dict[str, list[MeasuredAnswer]] = {}
        self._known: set[str] = set()
        self._read_back()

    # --- learning -----------------------------------------------------------------------------------------------

    def stages(self, trainer: Trainer, preferences: Preferences, policy: PolicyVersion) -> PolicyVersion:
        """One fit per limit on comparisons, then one on the measured values of all others."""
        multipliers = self._dual.multipliers(self._journal.round)
        for limit in self._limits:
            if limit.by_comparisons:
                weight = multipliers[limit.name]
                objective = Objective("cost", policy, cost_temperature(self._beta, weight), weight)
                policy = trainer.fit(objective, preferences.cost_of(limit.stated.compared_as))
        if all(limit.by_comparisons for limit in self._limits):
            return policy
        weights = np.array([0.0 if one.by_comparisons else multipliers[one.name] for one in self._limits])
        scale = value_scale(weights, self._ranges())
        rows, margins = value_pairs(self._all(), weights, self._factors, scale)
        if not rows:
            logger.warning(
                "round %d: no two answers to a prompt are measured yet: rates and means wait", self._journal.round
            )
            scale = 0.0  # the trainer takes the stage's base without a fit
        temperature = cost_temperature(self._beta, scale)
        return trainer.fit(Objective("cost", policy, temperature, scale, tuple(margins), values=True), rows)

    def _ranges(self) -> Array:
        """Largest range of each C_i within a prompt."""
        largest = np.max(list(self._factors.values()), axis=0)
        return np.array([one.scale for one in self._limits]) * largest

    # --- measuring ----------------------------------------------------------------------------------------------

    def measure_before(self, answers: Sequence[Response]) -> None:
        """Answers of the offline pairs, by the limits' own sources. Prompts that no set holds have no limit."""
        known = [answer for answer in answers if answer.prompt.token_ids in self._factors]
        self._remember(OFFLINE, [(answer, f"{OFFLINE}-{answer.id}") for answer in known])

    @property
    def before(self) -> list[MeasuredAnswer]:
        """The measured answers of the offline pairs."""
        return self._measured[f"{0:06d}-{OFFLINE}"]

    def measure_pairs(self, pairs: Sequence[Pair]) -> None:
        """Both answers of the round's explored pairs. They teach; estimates leave them out.

        An answer of the baseline may be in pairs of several rounds: it is asked about once.
        """
        answers = {answer.id: answer for pair in pairs for answer in (pair.first, pair.second)}
        new = [answer for name, answer in answers.items() if name not in self._known]
        self._remember(PAIRS, [(answer, f"{PAIRS}-{answer.id}") for answer in new])

    def ascend(self, answers: Sequence[Response]) -> None:
        """Measures the round's fresh answers, estimates every limit and moves all multipliers together."""
        draws = [f"{self._journal.round}-{index // ANSWERS_EACH}" for index in range(len(answers))]
        self._remember(ANSWERS, list(zip(answers, draws, strict=True)))
        newest = with_repeated_noise(self._newest(), self._all())
        ends = [one.stated.limit.cost_range for one in self._limits]
        worst = np.array([np.nan if end is None else end[1] for end in ends])
        try:
            estimates = estimates_on_sets(newest, self._factors, worst)
        except ValueError as problem:
            raise RunError(f"round {self._journal.round}: {problem}; draw more (feedback.responses)") from problem
        self._dual.step(estimates)
        acting = np.sum([self._factors[one.prompt] > 0 for one in newest], axis=0)
        for index, limit in enumerate(self._limits):
            each = limit.stated.asking.labels_each or 1
            mean, error = float(estimates.means[index]), float(estimates.standard_errors[index])
            mode = MODES[limit.stated.limit.quantity.kind]
            bound = limit.scale / 2.0 if limit.by_comparisons else None
            estimate = CostEstimate(mean, error, int(acting[index]), each, mode, limit.name, cost_max=bound)
            self._steps.ascend(estimate)

    def _all(self) -> list[MeasuredAnswer]:
        """Every measured answer so far, in order of rounds."""
        return [one for phase in sorted(self._measured) for one in self._measured[phase]]

    def _newest(self) -> list[MeasuredAnswer]:
        """The round's measured answers, or the newest of all rounds so far where a window is given."""
        rounds = range(1, self._journal.round + 1) if self._window else (self._journal.round,)
        found = [one for number in rounds for one in self._measured.get(f"{number:06d}-{ANSWERS}", [])]
        return found if self._window is None else found[-self._window :]

    def _remember(self, phase: str, asked: Sequence[tuple[Response, str]]) -> None:
        answers = [answer for answer, _ in asked]
        payload = self._journal.once(phase, lambda: self._measure_and_count(phase, answers))
        self._known.update(payload["ids"])
        key = f"{self._journal.round:06d}-{phase}"
        self._measured[key] = _of_payload(payload, [(*one, self._journal.round) for one in asked])

    def _measure_and_count(self, phase: str, answers: Sequence[Response]) -> dict[str, Any]:
        measured = self._measure(answers, seed_of(self._seed, self._journal.round, phase))
        counts = {}
        for index, limit in enumerate(self._limits):
            if limit.stated.limit.quantity.kind != "mean":
                known = int(np.isfinite(measured.costs[:, index]).sum())
                counts[f"labels/{limit.name}/{phase}"] = float(known * (limit.stated.asking.labels_each or 1))
            if phase == ANSWERS and np.isfinite(measured.unsafe[:, index]).any():
                prefix = "" if index == 0 else f"{limit.name}/"
                counts[f"{prefix}{UNSAFE_RATE}"] = float(np.nanmean(measured.unsafe[:, index]))
        self._journal.add_metrics(counts)
        listed = [[None if np.isnan(cost) else cost for cost in row] for row in measured.costs.tolist()]
        return {
            "ids": [answer.id for answer in answers],
            "costs": listed,
            "noise": measured.noise.tolist(),
            "failed": np.argwhere(measured.failed).tolist(),
        }

    def _read_back(self) -> None:
        """Measured answers of the rounds that were finished before a restart."""
        finished = [e for e in self._journal.phases(like="measure-%") if 0 < e.round < self._journal.next_round]
        known = {answer.id: answer for answer in self._journal.samples()} if finished else {}
        for entry in finished:
            ids = entry.payload["ids"]
            self._known.update(ids)
            named = [f"{entry.round}-{i // ANSWERS_EACH}" if entry.phase == ANSWERS else f"{entry.phase}-{one}"
                     for i, one in enumerate(ids)]  # fmt: skip
            asked = [(known[one], draw, entry.round) for one, draw in zip(ids, named, strict=True)]
            self._measured[f"{entry.round:06d}-{entry.phase}"] = _of_payload(entry.payload, asked)


def _of_payload(payload: Mapping[str, Any], asked: Sequence[tuple[Response, str, int]]) -> list[MeasuredAnswer]:
    costs = np.array(payload["costs"], dtype=np.float64)  # null is nan
    noise = np.array(payload["noise"])
    failed = np.zeros(costs.shape, dtype=bool)
    # in runs of versions before, every missing number was a failure
    for row, column in payload.get("failed", np.argwhere(np.isnan(costs)).tolist()):
        failed[row, column] = True
    return [
        MeasuredAnswer(round_, answer.prompt.token_ids, answer.token_ids, draw, costs[row], noise[row], failed[row])
        for row, (answer, draw, round_) in enumerate(asked)
    ]
