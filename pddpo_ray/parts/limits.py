"""A run under stated limits: their stages, the measured answers that teach and estimate them, and the joint dual step.

Limits that comparisons teach have a cost stage each, as in the paper; all limits on measured values share one stage
after those. Feedback labels single answers for a limit, or its own source measures. An answer
that was measured, before the first round, for the estimates or in an explored pair, teaches in all later rounds, since
a measure belongs to the answer alone.

A limit on the drift from the reference (kl) has no stage: its multiplier mu raises the temperature of all stages to
beta + mu. It is measured on the round's own answers, by what the trainer says of them, and asks nobody.

A limit versus the reference compares every answer with one that the reference gave to the same prompt, drawn anew for
it. A difference to the reference's measure is taken for the estimates alone: it is the same for all answers to a
prompt, so that the policy learns from the measure itself.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pddpo_ray.algorithms.stages import lagrangian_objective
from pddpo_ray.config.recipe_sections import SIGNALS
from pddpo_ray.contracts import Dual, Due, Feedback, Measure, Preferences, Trainer
from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal
from pddpo_ray.journal.rows import SAFETY
from pddpo_ray.limits.of_recipe import labelled_by_feedback
from pddpo_ray.parts.held_limit import OUTSIDE, UNSAFE_RATE, HeldLimit, answers_each, clip_of
from pddpo_ray.parts.measuring import MACHINE, MeasuredAnswers, records_of, tables_of
from pddpo_ray.parts.people_measuring import AskedOfPeople, PeopleOfLimits
from pddpo_ray.records import (
    Array,
    CostEstimate,
    MeasuredValues,
    Measurement,
    Objective,
    Pair,
    PolicyVersion,
    Prompt,
    Response,
)
from pddpo_ray.theory.estimates.cost_estimate import (
    Factors,
    LearnedCosts,
    MeasuredAnswer,
    Tokens,
    answers_behind,
    ends_by_draws,
    estimates_on_sets,
    means_by_people_alone,
    with_repeated_noise,
)
from pddpo_ray.theory.losses.value_stage import value_pairs, value_scale
from pddpo_ray.theory.multipliers.cost_stage import cost_temperature
from pddpo_ray.theory.seeds import seed_of

logger = logging.getLogger(__name__)

ANSWERS, PAIRS, OFFLINE = "measure-answers", "measure-pairs", "measure-offline"
REFERENCE = "reference-"
"""What the purpose of the reference's answers to compare with begins with; the phase they are for follows."""
REFERENCES = 8
"""Answers of the reference to one prompt at most, whose mean is taken off before the first round."""


class LimitsController:
    """What the methods do with stated limits. `window` answers count for adaLag's estimates (None: the round's own).
    `beta` is the weight of the KL divergence without a limit on the drift; `by_covariance` says whether a step divides
    by the covariance of the costs.

    `drift` is log policy / reference of answers, each under the policy that wrote it, `log_probs` the log-probability
    of answers under one policy. [n] `reference` draws one answer of the reference to each of these prompts, for a
    purpose; once, and again from the journal. `people` measure and audit what the limits leave to them; None: nothing.
    `due`: whose measures a step takes; None: its own. `feedback` gives labels of single answers. `newest`: fits
    learn from the last round's answers alone.
    """

    def __init__(
        self,
        journal: Journal,
        limits: Sequence[HeldLimit],
        measure: Measure,
        dual: Dual,
        *,
        beta: float,
        by_covariance: bool,
        drift: Callable[[Sequence[Response]], Array],
        log_probs: Callable[[PolicyVersion, Sequence[Response]], Array],
        reference: Callable[[str, Sequence[Prompt]], list[Response]],
        seed: int,
        feedback: Feedback,
        due: Due | None = None,
        window: int | None = None,
        newest: bool = False,
        people: PeopleOfLimits | None = None,
    ) -> None:
        self._people, self._due, self._feedback = people, due, feedback
        self._labelled_names = [limit.name for limit in limits if limit.stated.labelled]
        self._labels_each = max(limit.labels_each for limit in limits)
        self._measures_by_round: dict[int, tuple[list[Response | None], Callable[[], MeasuredValues]]] = {}
        self._journal, self._limits, self._measure, self._dual = journal, tuple(limits), measure, dual
        self._beta, self._by_covariance = beta, by_covariance
        self._drift, self._log_probs = drift, log_probs
        self._reference, self._seed, self._window = reference, seed, window
        self._answers_each = answers_each([limit.stated for limit in limits])
        self._stage: tuple[PolicyVersion, PolicyVersion] | None = None
        prompts = limits[0].factors
        self._factors = {prompt: np.array([limit.factors[prompt] for limit in limits]) for prompt in prompts}
        self._stated_limits = [limit.stated for limit in limits]
        scored = any(limit.stated.limit.quantity.kind == "mean" for limit in limits)
        self._phase, phases = (ANSWERS, "measure-%") if self.by_sources or scored else (SAFETY, SAFETY)
        group_sizes = {self._phase: self._answers_each}
        self._answers = MeasuredAnswers(journal, self._stated_limits, clip_of(limits), phases, group_sizes, newest)

    # --- learning -----------------------------------------------------------------------------------------------

    @property
    def on_drift(self) -> bool:
        """Whether a limit on the drift moves the temperature from round to round."""
        return any(limit.on_drift for limit in self._limits)

    @property
    def temperature(self) -> float:
        """beta + mu: the weight of the KL divergence in the round's stages."""
        multipliers = self._dual.multipliers
        return self._beta + sum(multipliers[limit.name] for limit in self._limits if limit.on_drift)

    def stages(self, trainer: Trainer, preferences: Preferences, policy: PolicyVersion) -> PolicyVersion:
        """One fit per limit that comparisons teach, each relative to the one before, then one on the measured values of
        all others. The order changes no exact optimum (paper.md §19).

        Without either, the round's policy is the reward policy itself under a name of its own.
        """
        multipliers, weight_of_kl = self._dual.multipliers, self.temperature
        for limit in self._limits:
            if limit.stated.by_comparisons:
                weight = multipliers[limit.name]
                objective = lagrangian_objective(policy, weight, weight_of_kl)
                policy = trainer.fit(objective, preferences.cost_of(limit.stated.compared_as))
        if not any(limit.by_values for limit in self._limits) and any(
            limit.stated.by_comparisons for limit in self._limits
        ):
            return policy
        weights = np.array([multipliers[limit.name] if limit.by_values else 0.0 for limit in self._limits])
        scale = value_scale(weights, self._ranges())
        rows, margins = value_pairs(self._answers.teaching, weights, self._factors, scale)
        if not rows:
            if any(limit.by_values for limit in self._limits):
                logger.warning(
                    "round %d: no two answers to a prompt are measured yet: rates and means wait", self._journal.round
                )
            scale = 0.0  # the trainer takes the stage's base without a fit
        temperature = cost_temperature(weight_of_kl, scale)
        version = trainer.fit(Objective("cost", policy, temperature, scale, tuple(margins), values=True), rows)
        self._stage = (policy, version)
        return version

    def _ranges(self) -> Array:
        """Largest range of each C_i within a prompt."""
        largest = np.max(list(self._factors.values()), axis=0)
        return np.array([limit.scale for limit in self._limits]) * largest

    # --- measuring ----------------------------------------------------------------------------------------------

    def measure_before(self, answers: Sequence[Response]) -> None:
        """Answers of the offline pairs, by the limits' own sources. Prompts that no set holds have no limit."""
        self._add_measures(OFFLINE, [answer for answer in answers if answer.prompt.token_ids in self._factors])

    @property
    def by_sources(self) -> bool:
        """Whether limits are measured by their own sources, and not by the labels of feedback."""
        return not labelled_by_feedback(limit.stated for limit in self._limits)

    @property
    def before(self) -> list[MeasuredAnswer]:
        """The measured answers of the offline pairs."""
        return self._answers.of(0, OFFLINE)

    def measure_pairs(self, pairs: Sequence[Pair]) -> None:
        """Both answers of the round's explored pairs. They teach; estimates leave them out.

        An answer of the baseline may be in pairs of several rounds: it is asked about once.
        """
        if not self.by_sources:
            return
        answers = {answer.id: answer for pair in pairs for answer in (pair.first, pair.second)}
        self._add_measures(PAIRS, [answer for name, answer in answers.items() if name not in self._answers.known])

    def open(self, answers: Sequence[Response]) -> None:
        """Opens people's questions about the round's answers; machines' numbers may decide which."""
        if self._labelled_names:
            self._feedback.open_safety(answers, self._labels_each)
        if self._people is not None:
            self._people.open_round(*self._people_inputs(answers))

    def step(self, answers: Sequence[Response]) -> None:
        """Measures the answers that are due, estimates every limit and moves all multipliers together.

        Late measures move them once they arrive, those of several rounds one after another.
        """
        batches = [(0, answers)] if self._due is None else self._due.answers(answers, self._is_measurable)
        for rounds_late, due_answers in batches:
            estimates, covariance = self._estimate_costs(due_answers)
            late = [replace(estimate, rounds_late=rounds_late) for estimate in estimates] if rounds_late else estimates
            self._dual.step(late, covariance)

    def _is_measurable(self, answers: Sequence[Response]) -> bool:
        """Whether the round's answers can be measured without a wait; a world's measures are as late as allowed."""
        if any(limit.stated.source.kind == "world" for limit in self._limits):
            return False
        people_ready = self._people is None or self._people.arrived(*self._people_inputs(answers))
        return people_ready and (not self._labelled_names or self._feedback.safety_arrived(answers, self._labels_each))

    def _people_inputs(self, answers: Sequence[Response]) -> AskedOfPeople:
        references, measured = self._references_and_measures(ANSWERS, answers)
        return measured(), answers, references, ANSWERS, seed_of(self._seed, self._journal.round, ANSWERS)

    def estimates(self, answers: Sequence[Response]) -> list[CostEstimate]:
        return self._estimate_costs(answers)[0]

    def observe(self, answers: Sequence[Response], multiplier: float | None = None) -> None:
        self._dual.observe(self.estimates(answers), multiplier=multiplier)

    def _estimate_costs(self, answers: Sequence[Response]) -> tuple[list[CostEstimate], Array]:
        """Estimates of all limits, and the covariance of their costs within prompts. -> [I], [I, I]"""
        for name in self._labelled_names:
            self._feedback.collect_safety(answers, self._labels_each, name)
        if self._phase == SAFETY:
            self._answers.keep(SAFETY, answers)
        else:
            self._add_measures(ANSWERS, answers)
        newest = self._newest_answers()
        if self._by_covariance:
            # nothing is learned from labels of feedback, and a few repetitions may say that all of a rate is noise:
            # the step would go as far as it is trusted, whatever the excess
            repeatable = np.array([not (limit.on_drift or limit.stated.labelled) for limit in self._limits])
            newest = with_repeated_noise(newest, self._answers.all, repeatable)
        try:
            return cost_estimates(self._limits, newest, self._factors, self._learned_costs(answers))
        except ValueError as problem:
            raise RunError(f"round {self._journal.round}: {problem}; draw more (feedback.responses)") from problem

    def _learned_costs(self, answers: Sequence[Response]) -> LearnedCosts | None:
        """Costs of the answers as the round's value stage learned them; None where no step needs them."""
        noisy = np.array([limit.of_one_opinion for limit in self._limits])
        if self._stage is None or self._window is not None or not (noisy.any() and self._by_covariance):
            return None
        base, policy = self._stage
        if {answer.policy_version for answer in answers} != {policy.number}:
            return None
        values = self.temperature * (self._log_probs(base, answers) - self._log_probs(policy, answers))
        multipliers = self._dual.multipliers
        weights = np.array([multipliers[limit.name] if limit.by_values else 0.0 for limit in self._limits])
        return LearnedCosts(np.where(np.isfinite(values), values, np.nan), weights, noisy)

    def _newest_answers(self) -> list[MeasuredAnswer]:
        """The round's measured answers, or the newest of all rounds so far where a window is given."""
        rounds = range(1, self._journal.round + 1) if self._window else (self._journal.round,)
        answers = [answer for number in rounds for answer in self._answers.of(number, self._phase)]
        if self._window is not None:
            answers = self._answers.not_withdrawn(answers)
        return answers if self._window is None else answers[-self._window :]

    def _add_measures(self, phase: str, answers: Sequence[Response]) -> None:
        references, measured = self._references_and_measures(phase, answers)
        self._journal.once(phase, lambda: self._journal_measurements(phase, answers, references, measured()))
        if phase == ANSWERS:
            del self._measures_by_round[self._journal.round]
        self._answers.keep(phase, answers)

    def _references_and_measures(
        self, phase: str, answers: Sequence[Response]
    ) -> tuple[list[Response | None], Callable[[], MeasuredValues]]:
        """The reference's answers and what machines measure. For a round's estimates both are made once and used again:
        when people are asked, and when their labels arrive."""
        number = self._journal.round
        if phase != ANSWERS or number not in self._measures_by_round:
            references = self._references(phase, answers)
            result = references, self._machine_measures(phase, answers, references)
            if phase != ANSWERS:
                return result
            self._measures_by_round[number] = result
        return self._measures_by_round[number]

    def _references(self, phase: str, answers: Sequence[Response]) -> list[Response | None]:
        """A fresh answer of the reference beside each answer that a limit compares with it; [] where none does.

        A difference teaches without it: pairs need none, and before the first round a few of each prompt say where the
        reference is.
        """
        count: Counter[Tokens] = Counter()
        rows = []
        for row, answer in enumerate(answers):
            prompt = answer.prompt.token_ids
            acting = [limit for limit in self._limits if limit.factors[prompt] > 0]
            differs = any(limit.difference for limit in acting)
            few = phase == OFFLINE and count[prompt] < REFERENCES
            if any(limit.stated.wins and self._is_compared(limit, phase) for limit in acting) or (
                differs and (phase == ANSWERS or few)
            ):
                rows.append(row)
                count[prompt] += 1
        if not rows:
            return []
        draws = self._reference(f"{REFERENCE}{phase}", [answers[row].prompt for row in rows])
        references: list[Response | None] = [None] * len(answers)
        for row, reference in zip(rows, draws, strict=True):
            references[row] = reference
        return references

    def _is_compared(self, limit: HeldLimit, phase: str) -> bool:
        """Whether the phase's answers are compared with the reference's: people do it in estimates or on a budget."""
        return phase == ANSWERS or limit.stated.source.kind != "people" or limit.stated.asking.answers is not None

    def _machine_measures(
        self, phase: str, answers: Sequence[Response], references: Sequence[Response | None]
    ) -> Callable[[], MeasuredValues]:
        """What machines measure. Where people are asked about the same answers it is in the journal before they are."""

        def measure() -> MeasuredValues:
            return self._measure(answers, seed_of(self._seed, self._journal.round, phase), references)

        if self._people is None or not self._people.asked(for_estimates=phase == ANSWERS):
            return measure

        def journalled() -> int:
            self._journal.add_measurements(phase, records_of(self._stated_limits, answers, measure()), answers)
            return len(answers)

        self._journal.once(f"{MACHINE}{phase}", journalled)
        number = self._journal.round
        return lambda: self._tables(self._journal.measurements(number, phase), answers)

    def _tables(self, records: Sequence[Measurement], answers: Sequence[Response]) -> MeasuredValues:
        return tables_of(
            records, [limit.limit.name for limit in self._stated_limits], [answer.id for answer in answers]
        )

    def _journal_measurements(
        self, phase: str, answers: Sequence[Response], references: Sequence[Response | None], measured: MeasuredValues
    ) -> dict[str, Any]:
        seed, labels = seed_of(self._seed, self._journal.round, phase), list[Measurement]()
        if self._people is not None and phase == ANSWERS:
            labels = self._people.of_round(measured, answers, references, phase, seed)
        elif self._people is not None:
            labels = self._people.of_budget(answers, references, phase, seed)
        for index, limit in enumerate(self._limits):
            if limit.on_drift and phase == ANSWERS:
                measured.values[:, index] = self._drifts(limit.name, answers)
        cells = {(record.answer, record.limit) for record in self._journal.measurements(self._journal.round, phase)}
        by_machines = records_of(self._stated_limits, answers, measured)
        new_records = [*(record for record in by_machines if (record.answer, record.limit) not in cells), *labels]
        self._journal.add_measurements(phase, new_records, answers)
        self._journal.add_metrics(self._counts(phase, self._tables([*by_machines, *labels], answers)))
        return {"ids": [answer.id for answer in answers]}

    def _counts(self, phase: str, measured: MeasuredValues) -> dict[str, float]:
        """Labels by limit, and of a round's answers those outside a mean's bounds and the unsafe rate of a logit."""
        counts = {}
        for index, limit in enumerate(self._limits):
            values, kind = measured.values[:, index], limit.stated.limit.quantity.kind
            if kind != "mean" and not limit.on_drift:
                value_count = int(np.isfinite(values).sum())
                if limit.difference:
                    value_count += int(np.isfinite(measured.against[:, index]).sum())
                audit_count = int(np.isfinite(measured.people[:, index]).sum())
                counts[f"labels/{limit.name}/{phase}"] = float(value_count * limit.labels_each + audit_count)
            prefix = "" if index == 0 else f"{limit.name}/"
            low, high = limit.stated_bounds
            if phase == ANSWERS and (outside_count := int(((values < low) | (values > high)).sum())):
                counts[f"{prefix}{OUTSIDE}"] = float(outside_count)
            if phase == ANSWERS and kind == "logit" and np.isfinite(values).any():
                counts[f"{prefix}{UNSAFE_RATE}"] = float(np.nanmean(values))
        return counts

    def _drifts(self, limit: str, answers: Sequence[Response]) -> Array:
        """log policy / reference of the round's answers. Raises RunError where one is no number. [n]"""
        drifts = self._drift(answers)
        if not np.isfinite(drifts).all():
            worst = answers[int(np.argmin(np.isfinite(drifts)))]
            raise RunError(
                f"limit {limit}: answer {worst.id} has no log-probability under the reference or the policy that wrote"
                " it, so their distance is unknown; check model.dtype and the reference"
            )
        return drifts


def cost_estimates(
    limits: Sequence[HeldLimit],
    measured: Sequence[MeasuredAnswer],
    factors: Factors,
    learned: LearnedCosts | None = None,
) -> tuple[list[CostEstimate], Array]:
    """The estimate of every limit, and the covariance of their costs within prompts. -> [I], [I, I]

    What is missing counts as the worst; the value is `missing` lower if it is the best, and the standard error is the
    larger of both. Raises ValueError where a limit's set has no answer.
    """
    ranges = [limit.stated.limit.cost_range for limit in limits]
    best, worst = (np.array([np.nan if ends is None else ends[side] for ends in ranges]) for side in (0, 1))
    set_estimates = estimates_on_sets(measured, factors, worst, learned)
    safest = estimates_on_sets(measured, factors, best, end=0)
    errors = np.maximum(set_estimates.standard_errors, safest.standard_errors)
    rates = np.array([limit.stated.limit.quantity.kind == "rate" for limit in limits])
    people_means = np.where(rates, means_by_people_alone(measured), np.inf)
    missing = np.maximum(set_estimates.means - np.minimum(safest.means, people_means), 0.0)
    estimates = []
    for index, limit in enumerate(limits):
        kind = limit.stated.limit.quantity.kind
        mode = "cost_model" if limit.difference else SIGNALS.get(kind, "cost_model")
        bounds = limit.stated.limit.cost_range if mode == "cost_model" else None
        ends = None if bounds is None else ends_by_draws(safest.draws[:, index], set_estimates.draws[:, index], bounds)
        low, high = ends or (None, None)
        estimates.append(
            CostEstimate(
                float(set_estimates.means[index]),
                float(errors[index]),
                answers_behind(measured, index, factors),
                limit.labels_each,
                mode,
                limit.name,
                within_variance=float(set_estimates.covariance[index, index]),
                cost_max=limit.clip,
                bounds=bounds,
                low=low,
                high=high,
                missing=float(missing[index]),
            )
        )
    return estimates, set_estimates.covariance
