"""Draws for a candidate of the ledger: batches of prompts, its answers to them and their labels, until it is decided.

A certified limit gets no further draws; a limit on a prompt set and a gating group have draws of their own. The run's
own source labels: a world's truth, models, a judge, or people, who get each batch through their queue. Beside a model,
people see each draw with a fixed probability. A world's prompts are drawn with replacement for every answer; real text
has a certification set that nothing else draws from (`certificate.prompts`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from pddpo_ray.backends.backends import Backends, sets_of_prompts
from pddpo_ray.certificates.groups import SETS as PROMPT_SETS
from pddpo_ray.certificates.groups import demand_groups
from pddpo_ray.certificates.ledger import BATCH, DRAWN, Candidate, TestedLimit, line_of
from pddpo_ray.config import Config
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal
from pddpo_ray.limits.of_recipe import labelled_by_feedback
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.parts.labelling import FeedbackController
from pddpo_ray.parts.measuring import DRAWS, numbers_of, records_of, table_of
from pddpo_ray.parts.people import Asking
from pddpo_ray.parts.people_measuring import people_of_limits
from pddpo_ray.parts.sampling import Proposal, RolloutController
from pddpo_ray.records import Decoding, Measurement, Prompt, Response
from pddpo_ray.rollout.delivery_check import DeliveryCheck
from pddpo_ray.scorers.labellers import Labelling, feedback_of, measure_of, unsafe_chance
from pddpo_ray.theory.seeds import generator, seed_of
from pddpo_ray.training.progress import LinePace

logger = logging.getLogger(__name__)

EARLY = 2
"""Batches after which a policy may give way to the next."""


class CandidateDraws:
    """Draws batches for one candidate. Every draw follows from the seed, the candidate and the batch's name alone."""

    def __init__(self, config: Config, journal: Journal, backends: Backends, candidate: Candidate) -> None:
        self._config, self._journal, self._backends, self._candidate = config, journal, backends, candidate
        versions = {version.number: version for version in journal.policies}
        self._versions = [versions[version["number"]] for version in candidate.versions]
        log_probs = backends.trainer.log_probs
        self._rollout = RolloutController(
            backends.engines,
            journal,
            seed=config.seed,
            decoding=self._decoding,
            reference=backends.reference,
            proposal=Proposal(),
            log_probs=log_probs,
            verify=DeliveryCheck(log_probs, backends.canaries, config.rollout.canary_tolerance, backends.tokenizer),
        )
        self._groups = sets_of_prompts(backends)
        self._batch = ""
        self._feedback = self._prepare_feedback()
        self._measure = measure_of(config, backends, self._feedback)
        self._people = people_of_limits(
            config, journal, backends.held_limits, self._groups, unsafe_chance(self._feedback.models),
            "pddpo certify RUN",
        )  # fmt: skip
        journal.round = candidate.round

    @property
    def _decoding(self) -> Decoding:
        return Decoding(max_tokens=self._config.rollout.max_tokens)

    def _prepare_feedback(self) -> FeedbackController:
        """The run's own feedback; people get every batch of a candidate as a batch of their own."""
        # models that label were trained before the first round, and are read back from there
        self._journal.round = 0
        asking = Asking(part_of=lambda: f"-{self._batch}", go_on="pddpo certify RUN")
        feedback = feedback_of(Labelling(self._config, self._journal, self._backends, self._rollout, asking))
        feedback.prepare()
        return feedback

    def batch(self, number: int, limits: Sequence[TestedLimit]) -> bool:
        """Draws a batch for each prompt set of these limits: prompts, a policy for each, and its answer.

        Measures every answer under all limits on its set. False: no prompt is left to draw.
        """
        draws: dict[str, list[str]] = {}
        numbers: dict[str, list[float | None]] = {}
        for over in dict.fromkeys(limit.over for limit in limits):
            set_limits = [limit for limit in limits if limit.over == over]
            batch = f"{number}" if over is None else f"{over}-{number}"
            prompts, authors = self._draw_prompts(number, over, set_limits[0])
            if not prompts:
                logger.warning("the certification set is used up: every prompt of it was drawn once")
                return False
            answers = self._answers(prompts, authors, batch)
            draws |= {limit.name: [answer.id for answer in answers] for limit in set_limits}
            numbers |= self._measure_answers(answers, set_limits, batch)
        payload = {"draws": draws, "numbers": numbers}
        self._journal.once(f"{BATCH}{number}", lambda: payload)
        return True

    def _draw_prompts(self, number: int, over: str | None, limit: TestedLimit) -> tuple[list[Prompt], list[int]]:
        """Prompts of the limit's set, each with its author's index among the candidate's policies."""
        set_key = () if over is None else (over,)
        draws = generator(self._config.seed, "certificate", self._candidate.number, number, *set_key)
        if self._backends.certification:
            return self._of_the_set(draws, "-".join((*set_key, str(number))), over)
        prompts, prior = self._backends.prompts, self._backends.prior
        weights = np.ones(len(prompts)) if prior is None else np.asarray(prior)
        if limit.part_of is not None:
            weights = weights * [limit.over in self._groups.get(prompt.id, ()) for prompt in prompts]
        elif over is not None:
            held_limit = next(entry for entry in self._backends.held_limits if entry.name == limit.name)
            weights = weights * [held_limit.factors[prompt.token_ids] for prompt in prompts]
        chances = None if prior is None and over is None else weights / np.sum(weights)
        sample = [prompts[index] for index in draws.choice(len(prompts), self._config.certificate.batch, p=chances)]
        return sample, draws.choice(len(self._versions), self._config.certificate.batch).tolist()

    def _of_the_set(self, draws: np.random.Generator, batch: str, group: str | None) -> tuple[list[Prompt], list[int]]:
        """Prompts of a group that no fit has seen: drawn with replacement, or (population) each once in the ledger."""
        prompts, size = self._members(group), self._config.certificate.batch
        if self._config.certificate.scope == "set":
            sample = [prompts[index] for index in draws.choice(len(prompts), size)]
        else:
            by_id = {prompt.id: prompt for prompt in prompts}
            names = self._journal.once(f"{DRAWN}{batch}", lambda: self._unused_prompt_ids(prompts))
            sample = [by_id[name] for name in names]
        return sample, draws.choice(len(self._versions), len(sample)).tolist()

    def _members(self, group: str | None) -> list[Prompt]:
        """The certification set, or its part in a group."""
        return [
            prompt
            for prompt in self._backends.certification
            if group is None or group in self._groups.get(prompt.id, ())
        ]

    def _unused_prompt_ids(self, prompts: Sequence[Prompt]) -> list[str]:
        """Ids of the next of these prompts that no batch of the ledger has; [] if none is left."""
        spent_ids = {name for phase in self._journal.phases(like=f"{DRAWN}%") for name in phase.payload}
        order = generator(self._config.seed, "certification set").permutation(len(prompts))
        unused_ids = [prompts[index].id for index in order if prompts[index].id not in spent_ids]
        return unused_ids[: self._config.certificate.batch]

    def _measure_answers(
        self, answers: Sequence[Response], limits: Sequence[TestedLimit], batch: str
    ) -> dict[str, list[float | None]]:
        """By limit, a number for every answer or None where its source gave none."""
        run_limits, phase = [limit.stated for limit in self._backends.held_limits], f"{DRAWS}{batch}"
        if labelled_by_feedback(limits):
            self._batch = batch
            return {
                limit.name: self._feedback.unsafe_shares(answers, limit.labels_each, limit.measured_as, batch)
                for limit in limits
            }
        references: list[Response] = []
        if any(limit.versus for limit in limits):
            prompts, reference = [answer.prompt for answer in answers], self._backends.reference
            references = self._rollout.pool(f"reference-{batch}", prompts, reference, 1, self._decoding)
        budgets = [limit.stated.asking.answers or len(answers) for limit in self._backends.held_limits]

        def add() -> int:
            # a budget is for one call, and a draw left unmeasured would count as the worst
            size = min(budgets)
            parts = [slice(start, start + size) for start in range(0, len(answers), size)]
            seeds = [seed_of(self._config.seed, self._journal.round, batch, index) for index in range(len(parts))]
            for part, seed in zip(parts, seeds, strict=True):
                measured = self._measure(answers[part], seed, references[part])
                records = records_of(run_limits, answers[part], measured)
                self._journal.add_measurements(phase, records, answers)
                _demand_within_bounds(limits, records)
            return len(answers)

        self._journal.once(phase, add)
        if self._people is not None:
            shares = {limit.measured_as: limit.people for limit in limits}
            self._people.of_draws(answers, references, shares, batch)
        return self._numbers(answers, limits, run_limits, batch)

    def _numbers(
        self, answers: Sequence[Response], limits: Sequence[TestedLimit], run_limits: Sequence[StatedLimit], batch: str
    ) -> dict[str, list[float | None]]:
        """A batch's numbers by limit, corrected by people where they audit."""
        ids = [answer.id for answer in answers]
        records = self._journal.measurements(self._journal.round, f"{DRAWS}{batch}")
        numbers = table_of(records, run_limits, ids, self._config.dual.cost_max).numbers
        columns = {limit.limit.name: numbers_of(numbers[:, column]) for column, limit in enumerate(run_limits)}
        return {limit.name: columns[limit.measured_as] for limit in limits}

    def _answers(self, prompts: Sequence[Prompt], authors: Sequence[int], batch: str) -> list[Response]:
        """One answer per prompt, by the policy drawn for it, in the order of drawing."""
        answers: dict[int, Response] = {}
        for author, version in enumerate(self._versions):
            indices = [index for index in range(len(prompts)) if authors[index] == author]
            if indices:
                self._rollout.publish(version)
                purpose = f"certificate-{batch}-{version.number}"
                samples = self._rollout.pool(purpose, [prompts[index] for index in indices], version, 1, self._decoding)
                answers |= dict(zip(indices, samples, strict=True))
        return [answers[index] for index in range(len(prompts))]


def _demand_within_bounds(limits: Sequence[TestedLimit], records: Sequence[Measurement]) -> None:
    """Raises UserError if an answer measures outside the bounds of a mean: clipping it would distort the mean."""
    for limit in limits:
        costs = [
            limit.stated.cost(record.value) - (0.0 if record.against is None else limit.stated.cost(record.against))
            for record in records
            if record.limit == limit.measured_as and record.value is not None
        ]
        outside = [cost for cost in costs if not limit.low <= cost <= limit.high]
        if limit.kind == "mean" and outside:
            raise UserError(
                f"limit {limit.name}: an answer measures {limit.amount(outside[0])}, outside its bounds; a"
                " certificate needs wider `bounds`, which make another limit of it"
            )


def draw_until_decided(
    config: Config, journal: Journal, backends: Backends, candidate: Candidate, budget: int, *, patient: bool = True
) -> None:
    """Draws batches until the candidate is decided under these limits or has spent its budget. Unless `patient`, stops
    as soon as `EARLY` or more batches miss a limit on average: few such policies are certified."""
    journal.round = candidate.round
    demand_groups(config, backends)
    draws = CandidateDraws(config, journal, backends, candidate)
    if members := sets_of_prompts(backends):
        journal.once(PROMPT_SETS, lambda: members)
    bounds, pace = {limit.name: limit.limit for limit in candidate.limits}, LinePace()
    while True:
        entry = line_of(journal, candidate.number).about(bounds)
        if entry.state != "undecided" or entry.count >= budget:
            return
        open_limits = [limit for limit in candidate.limits if entry.findings[limit.name].state == "undecided"]
        may_give_way = not patient and entry.count >= EARLY * config.certificate.batch
        if may_give_way and any(limit.is_missed_by(entry.numbers[limit.name]) for limit in open_limits):
            return
        if pace.due():
            undecided = ", ".join(limit.name for limit in open_limits)
            logger.info("%s: %d of at most %d draws, undecided: %s", candidate.policy, entry.count, budget, undecided)
        # not from the count of draws: limits that were decided earlier have fewer, and catch up under other bounds
        batches = sum(phase.phase.startswith(BATCH) for phase in journal.phases(candidate.round))
        if not draws.batch(batches, open_limits):
            return
