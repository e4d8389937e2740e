"""Ask until decided: draws, answers and labels for a candidate until it is certified, rejected or out of budget.

    entry in the ledger ──► batch: prompts ──► answers of the candidate ──► labels ──► look after every draw ──┐
                              ▲                                                                    undecided   │
                              └────────────────────────────────────────────────────────────────────────────────┘

A limit that is certified is asked no further; a limit on a prompt set has draws of its own from that set. The run's
own source labels: a world's truth, models, a judge, or people, who get every batch as one of their queue. A world's
prompts are all there are: they are drawn anew with replacement for every answer, and the sentence says that the policy
was trained on them. Real text has a certification set that nothing else draws from (`certificate.prompts`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from pddpo_ray.config import Config, NoWorldConfig, PeopleFeedback
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.limits.reading import SourceName, StatedLimit
from pddpo_ray.loop import in_process
from pddpo_ray.loop.backends import Backends
from pddpo_ray.loop.beginning import resumed_run
from pddpo_ray.loop.labellers import CONSTRAINT, feedback_of
from pddpo_ray.loop.labelling import FeedbackController
from pddpo_ray.loop.ledger import BATCH, Candidate, Entry, TestedLimit, enter, line_of, read_ledger
from pddpo_ray.loop.mixed_labelling import people_labeller
from pddpo_ray.loop.sampling import Proposal, RolloutController
from pddpo_ray.records import Decoding, PolicyVersion, Prompt, Response
from pddpo_ray.rollout.delivery_check import DeliveryCheck
from pddpo_ray.storage.whole_files import JOURNAL
from pddpo_ray.theory.levels import Allocation
from pddpo_ray.theory.seeds import generator, seed_of

logger = logging.getLogger(__name__)

DRAWN = "drawn-"
"""Phase that holds the prompts of a batch, where each is drawn once."""
SOURCES = {"world": "the world's truth", "model": "reward and cost models", "judge": "a judge", "people": "people"}
"""Who labels, by `feedback.kind`."""

MakeParts = Callable[[], AbstractContextManager[Backends]]


def certify(config: Config, run_dir: Path, policy: str, limits: Mapping[str, float], budget: int) -> Entry:
    """Puts a policy of a finished run to the test in this process: `ask` on the journal in its folder."""
    here = config.in_one_process()
    with opened(config, run_dir) as journal:
        return ask(config, journal, policy, limits, budget, lambda: closing(in_process.make_backends(here, run_dir)))


def opened(config: Config, run_dir: Path) -> Journal:
    """The journal of a run that is there, to write. Raises UserError where nothing could be certified."""
    _demand_possible(config)
    run_id, shared = resumed_run(config, run_dir)
    recipe = config.model_dump(mode="json")
    return Journal.open(config.journal or run_dir / JOURNAL, run_id, create=recipe, fixed=shared)


def ask(
    config: Config, journal: Journal, policy: str, limits: Mapping[str, float], budget: int, parts: MakeParts
) -> Entry:
    """Puts a policy of a run to the test with at most `budget` draws a limit, and returns its line of the ledger.

    `limits` are other bounds than the recipe's, in the limits' own units. The same policy under the same limits goes on
    where it stopped; `parts` draws and labels, and is entered where there is something to draw. Raises UserError for a
    policy or limit that the run has not, and where nothing could be certified.
    """
    versions = _versions(journal, policy)
    ledger = read_ledger(journal)
    wanted = tested_limits(config, limits, len(ledger) + 1)
    entry = _same(ledger, versions, wanted)
    if entry is None or (entry.state == "undecided" and entry.count < budget):
        candidate = entry.candidate if entry else _candidate(journal, config, policy, versions, wanted)
        with parts() as backends:
            _draw(config, journal, backends, candidate, budget)
        entry = line_of(journal, candidate.number)
    return entry


def reason_against(config: Config) -> str | None:
    """Why nothing of such a run can be certified; None: it can be."""
    try:
        _demand_possible(config)
        tested_limits(config, {}, 1)
    except UserError as problem:
        return str(problem)
    return None


def tested_limits(config: Config, limits: Mapping[str, float], number: int) -> tuple[TestedLimit, ...]:
    """The limits of a candidate, each at the level of candidate `number`; 0 where the fixed shares are used up.

    Raises UserError for a limit that no draws can certify.
    """
    unknown = [name for name in limits if name not in config.thresholds]
    if unknown:
        raise UserError(f"--limit {unknown[0]}: this run's limits are {', '.join(config.thresholds)}")
    if config.limits:
        tested = [_stated(one, limits, number, config) for one in bounded(config) if cannot(one) is None]
        if not tested:
            raise UserError("; ".join(estimated_only(config)))
    else:
        tested = [_on_labels(config, name, limits.get(name, of), number) for name, of in config.thresholds.items()]
    for one in tested:
        if not one.possible:
            bias = f", a logit's also above -C = {one.low:g} by the bias of {one.labels_each} labels, {one.bias:.2f}"
            raise UserError(
                f"limit {one.name} of {one.stated.bound} cannot be certified by any number of draws: it must lie inside"
                f" the measure's bounds{bias if one.kind == 'logit' else ''}"
            )
    return tuple(tested)


def estimated_only(config: Config) -> tuple[str, ...]:
    """The stated limits that no draws can certify, each with its reason."""
    return tuple(f"{one.limit.name}: {cannot(one)}" for one in bounded(config) if cannot(one))


def bounded(config: Config) -> tuple[StatedLimit, ...]:
    """The stated limits; tokens of an answer are at most those that a run lets it have."""
    longest = config.rollout.max_tokens
    return tuple(
        replace(one, limit=one.limit.within(0.0, longest))
        if one.source == SourceName("rule", "tokens") and one.limit.cost_range is None
        else one
        for one in config.stated
    )


def cannot(one: StatedLimit) -> str | None:
    """Why a stated limit is estimated only; None: it can be certified."""
    quantity = one.limit.quantity
    if quantity.kind == "kl":
        return "a kl limit is never certified, for its ratio has no bound"
    if quantity.kind == "mean" and one.limit.cost_range is None:
        return "a mean without stated bounds is estimated only, never certified; state them, e.g. bounds: [0, 400]"
    return None


def _stated(one: StatedLimit, others: Mapping[str, float], number: int, config: Config) -> TestedLimit:
    """A limit of `limits:` as it is tested."""
    limit, quantity = one.limit, one.limit.quantity
    bound = limit.cost(others[limit.name]) if limit.name in others else limit.cost_limit
    low, high = limit.cost_range or (-config.dual.cost_max, config.dual.cost_max)
    level, delta = level_of(config, limit.name, number), config.deltas[limit.name]
    return TestedLimit(
        limit.name, bound, level, delta, quantity.kind, one.asking.labels_each or 1, low, high, str(one.source),
        quantity.over, quantity.unit, limit.at_least, labelled=False,
    )  # fmt: skip


def _on_labels(config: Config, name: str, bound: float, number: int) -> TestedLimit:
    """The limit on the paper's cost, or one of `constraints`, from safety labels."""
    labels, cost_max, signal = config.feedback.labels_each, config.dual.cost_max, config.feedback.signal
    if signal == "cost_model":
        raise UserError("feedback.signal=cost_model: scores without stated bounds are estimated only, never certified")
    level, delta = level_of(config, name, number), config.deltas[name]
    source = SOURCES.get(config.feedback.kind, config.feedback.kind)
    if signal == "unsafe_rate":
        return TestedLimit(name, bound, level, delta, "rate", labels, 0.0, 1.0, source)
    return TestedLimit(name, bound, level, delta, "logit", labels, -cost_max, cost_max, source, unit="logit")


def level_of(config: Config, name: str, number: int) -> float:
    """alpha of a limit for the k-th candidate: its part of delta."""
    given = config.certificate
    shares = None if given.shares is None else tuple(given.shares)
    return Allocation(shares).level(config.deltas[name], number)


def siblings(config: Config, run_dir: Path) -> list[str]:
    """Other runs beside this one with the same recipe but for the seed: who trains until one passes must see it."""
    mine = {**config.fixed_settings(), "seed": None}
    found = []
    for folder in sorted(run_dir.parent.iterdir()):
        if folder != run_dir and (folder / JOURNAL).is_file() and {**_settings_of(folder), "seed": None} == mine:
            found.append(folder.name)
    return found


def _settings_of(folder: Path) -> Mapping[str, Any]:
    """Fixed settings of another run by today's rules, or as they are stored where its recipe is none of today's."""
    try:
        with open_folder(folder) as other:
            stored = other.about
    except UserError:  # begun this moment, or no journal of a run
        return {}
    try:
        return Config.model_validate(stored.recipe).fixed_settings()
    except ValidationError:
        return dict(stored.fixed_settings)


def _demand_possible(config: Config) -> None:
    if config.feedback.kind not in SOURCES:
        raise UserError(
            f"feedback.kind={config.feedback.kind}: certificates are given where {', '.join(SOURCES)} label; a model"
            " and people together cannot be asked for them yet"
        )
    on_sets = [one.limit.name for one in config.stated if one.limit.quantity.over]
    if config.certificate.prompts and on_sets:
        raise UserError(
            f"certificate.prompts: the limit {on_sets[0]} is about a prompt set, and these files are in none; leave"
            " them out, and the set's own prompts are drawn"
        )


def _versions(journal: Journal, policy: str) -> tuple[PolicyVersion, ...]:
    """The rounds' policies that a candidate draws from. Raises UserError."""
    finished = journal.policies[: journal.next_round - 1]
    names = [f"round-{number}" for number in range(1, len(finished) + 1)]
    if not finished:
        raise UserError("no round is finished: there is no policy to certify")
    if policy == "mixture":
        return tuple(finished)
    wanted = names[-1] if policy == "last" else policy
    if wanted not in names:
        raise UserError(f"--policy {policy}: this run has {names[0]} to {names[-1]}, last and mixture")
    return (finished[names.index(wanted)],)


def _same(ledger: Sequence[Entry], versions: Sequence[PolicyVersion], wanted: Sequence[TestedLimit]) -> Entry | None:
    """The line of the same weights under the same limits; its level is the one that it entered with."""
    hashes, limits = [one.sha256 for one in versions], {one.name: one.limit for one in wanted}
    for entry in ledger:
        mine = {one.name: one.limit for one in entry.candidate.limits}
        if [one["sha256"] for one in entry.candidate.versions] == hashes and mine == limits:
            return entry
    return None


def _candidate(
    journal: Journal, config: Config, policy: str, versions: Sequence[PolicyVersion], limits: tuple[TestedLimit, ...]
) -> Candidate:
    if not all(one.level for one in limits):
        raise UserError(
            "certificate.shares are used up: this run has tested as many candidates, a further one cannot be certified"
        )
    named = versions[0].name if len(versions) == 1 else f"the mixture of rounds 1 to {len(versions)}"
    decoding = {"temperature": config.policy.temperature, "top_p": 1.0, "max_tokens": config.rollout.max_tokens}
    return enter(
        journal,
        Candidate(
            number=len(read_ledger(journal)) + 1,
            policy=named,
            versions=tuple({"name": one.name, "number": one.number, "sha256": one.sha256} for one in versions),
            limits=limits,
            decoding=decoding,
            statement=_statement(config),
            estimated=estimated_only(config),
        ),
    )


def _statement(config: Config) -> str:
    """What prompts the sentence is about, and how they were drawn."""
    if not config.certificate.prompts:
        whose = "the run's" if isinstance(config.world, NoWorldConfig) else "the world's"
        return f"{whose} prompts, drawn with replacement; the policy was trained on them"
    if config.certificate.scope == "set":
        return "the prompts of the certification set, drawn with replacement; the policy was not trained on them"
    return "new prompts like those of the certification set, each drawn once; the policy was not trained on them"


class _Asking:
    """Draws batches for one candidate. Every draw follows from the seed, the candidate and its place alone."""

    def __init__(self, config: Config, journal: Journal, backends: Backends, candidate: Candidate) -> None:
        self._config, self._journal, self._backends, self._candidate = config, journal, backends, candidate
        known = {one.number: one for one in journal.policies}
        self._versions = [known[one["number"]] for one in candidate.versions]
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
        self._place = ""
        self._feedback = self._labelled()
        journal.round = candidate.round

    @property
    def _decoding(self) -> Decoding:
        return Decoding(max_tokens=self._config.rollout.max_tokens)

    def _labelled(self) -> FeedbackController:
        """The run's own feedback; people get every batch of a candidate as a batch of their own."""
        config, journal = self._config, self._journal
        if isinstance(config.feedback, PeopleFeedback):
            people = people_labeller(
                config.feedback,
                journal,
                cost_max=config.dual.cost_max,
                part_of=lambda: f"-{self._place}",
                go_on="pddpo certify RUN",
            )
            return FeedbackController({CONSTRAINT: people}, journal, seed=config.seed, source="people")
        # models that label were trained before the first round, and are read back from there
        journal.round = 0
        return feedback_of(config, journal, self._backends, self._rollout)

    def batch(self, number: int, limits: Sequence[TestedLimit]) -> bool:
        """A prompt, one of the policies and an answer for each draw of the batch, for each prompt set of these limits.

        Every answer is measured under all limits on its set. False: no prompt is left to draw.
        """
        drawn: dict[str, list[str]] = {}
        numbers: dict[str, list[float | None]] = {}
        for over in dict.fromkeys(limit.over for limit in limits):
            mine = [limit for limit in limits if limit.over == over]
            place = f"{number}" if over is None else f"{over}-{number}"
            asked, authors = self._drawn(number, over, mine[0])
            if not asked:
                logger.warning("the certification set is used up: every prompt of it was drawn once")
                return False
            answers = self._answers(asked, authors, place)
            drawn |= {limit.name: [answer.id for answer in answers] for limit in mine}
            numbers |= self._measured(answers, mine, place)
        payload = {"draws": drawn, "numbers": numbers}
        self._journal.once(f"{BATCH}{number}", lambda: payload)
        return True

    def _drawn(self, number: int, over: str | None, limit: TestedLimit) -> tuple[list[Prompt], list[int]]:
        """Prompts of the limit's set, each with its author's place among the candidate's policies."""
        own = () if over is None else (over,)
        draws = generator(self._config.seed, "certificate", self._candidate.number, number, *own)
        if self._backends.certification:
            return self._of_the_set(draws, "-".join((*own, str(number))))
        prompts, prior = self._backends.prompts, self._backends.prior
        weights = np.ones(len(prompts)) if prior is None else np.asarray(prior)
        if over is not None:
            held = next(one for one in self._backends.held_limits if one.name == limit.name)
            weights = weights * [held.factors[prompt.token_ids] for prompt in prompts]
        chances = None if prior is None and over is None else weights / np.sum(weights)
        asked = [prompts[index] for index in draws.choice(len(prompts), self._config.certificate.batch, p=chances)]
        return asked, draws.choice(len(self._versions), self._config.certificate.batch).tolist()

    def _of_the_set(self, draws: np.random.Generator, place: str) -> tuple[list[Prompt], list[int]]:
        """Prompts that no fit has seen: drawn with replacement, or (population) each once in the whole ledger."""
        prompts, size = self._backends.certification, self._config.certificate.batch
        if self._config.certificate.scope == "set":
            asked = [prompts[index] for index in draws.choice(len(prompts), size)]
        else:
            known = {prompt.id: prompt for prompt in prompts}
            asked = [known[name] for name in self._journal.once(f"{DRAWN}{place}", self._not_yet_drawn)]
        return asked, draws.choice(len(self._versions), len(asked)).tolist()

    def _not_yet_drawn(self) -> list[str]:
        """Ids of the next prompts of the certification set that no batch of the ledger has; [] if none is left."""
        spent = {name for phase in self._journal.phases(like=f"{DRAWN}%") for name in phase.payload}
        prompts = self._backends.certification
        order = generator(self._config.seed, "certification set").permutation(len(prompts))
        left = [prompts[index].id for index in order if prompts[index].id not in spent]
        return left[: self._config.certificate.batch]

    def _measured(
        self, answers: Sequence[Response], limits: Sequence[TestedLimit], place: str
    ) -> dict[str, list[float | None]]:
        """By limit, a number for every answer or None where its source gave none."""
        held = [one.name for one in self._backends.held_limits]
        if self._backends.measure is None:
            self._place = place
            return {
                limit.name: self._feedback.unsafe_shares(answers, limit.labels_each, limit.name, place)
                for limit in limits
            }
        measure = self._backends.measure
        budgets = [one.stated.asking.answers or len(answers) for one in self._backends.held_limits]

        def costs() -> list[list[float | None]]:
            # budgets are those of a call: a draw that is not measured would count as the worst
            parts = [answers[start : start + min(budgets)] for start in range(0, len(answers), min(budgets))]
            seeds = [seed_of(self._config.seed, self._journal.round, place, index) for index in range(len(parts))]
            found = np.concatenate([measure(part, seed).costs for part, seed in zip(parts, seeds, strict=True)])
            return [[None if np.isnan(cost) else cost for cost in column] for column in found.T.tolist()]

        columns = self._journal.once(f"measure-{place}", costs)
        return {limit.name: columns[held.index(limit.name)] for limit in limits}

    def _answers(self, prompts: Sequence[Prompt], authors: Sequence[int], place: str) -> list[Response]:
        """One answer per prompt, by the policy drawn for it, in the order of drawing."""
        answers: dict[int, Response] = {}
        for author, version in enumerate(self._versions):
            mine = [index for index in range(len(prompts)) if authors[index] == author]
            if mine:
                self._rollout.publish(version)
                purpose = f"certificate-{place}-{version.number}"
                drawn = self._rollout.pool(purpose, [prompts[index] for index in mine], version, 1, self._decoding)
                answers |= dict(zip(mine, drawn, strict=True))
        return [answers[index] for index in range(len(prompts))]


def _draw(config: Config, journal: Journal, backends: Backends, candidate: Candidate, budget: int) -> None:
    """Batches until the candidate is decided or has had its budget."""
    journal.round = candidate.round
    asking = _Asking(config, journal, backends, candidate)
    while True:
        entry = line_of(journal, candidate.number)
        if entry.state != "undecided" or entry.count >= budget:
            return
        still = [limit for limit in candidate.limits if entry.findings[limit.name].state == "undecided"]
        if not asking.batch(math.ceil(entry.count / config.certificate.batch), still):
            return
