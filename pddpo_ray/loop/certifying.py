"""Ask until decided: draws, answers and labels for a candidate until it is certified, rejected or out of budget.

    entry in the ledger ──► batch: prompts ──► answers of the candidate ──► labels ──► look after every draw ──┐
                              ▲                                                                    undecided   │
                              └────────────────────────────────────────────────────────────────────────────────┘

Works on worlds made here, whose labels their truth gives. A world's prompts are all there are: they are drawn anew with
replacement for every answer, and the sentence says that the policy was trained on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pddpo_ray.config import Config, WorldFeedback
from pddpo_ray.config.cluster import InProcess
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.loop import in_process
from pddpo_ray.loop.backends import Backends
from pddpo_ray.loop.beginning import resumed_run
from pddpo_ray.loop.labellers import CONSTRAINT
from pddpo_ray.loop.labelling import FeedbackController
from pddpo_ray.loop.ledger import BATCH, Candidate, Entry, TestedLimit, enter, line_of, read_ledger
from pddpo_ray.loop.sampling import Proposal, RolloutController
from pddpo_ray.records import Decoding, PolicyVersion, Prompt, Response
from pddpo_ray.rollout.delivery_check import DeliveryCheck
from pddpo_ray.storage.whole_files import JOURNAL
from pddpo_ray.theory.levels import Allocation, place_after
from pddpo_ray.theory.measured_draws import logit_limit
from pddpo_ray.theory.seeds import generator


def certify(config: Config, run_dir: Path, policy: str, limits: Mapping[str, float], budget: int) -> Entry:
    """Puts a policy of a run to the test with at most `budget` draws in all, and returns its line of the ledger.

    The same policy under the same limits goes on where it stopped. Raises UserError for a policy or limit that the run
    has not, and where nothing could ever be certified.
    """
    _demand_possible(config)
    run_id, shared = resumed_run(config, run_dir)
    with Journal.open(
        config.journal or run_dir / JOURNAL, run_id, create=config.model_dump(mode="json"), fixed=shared
    ) as journal:
        versions = _versions(journal, policy)
        place = place_after(entry.state == "certified" for entry in read_ledger(journal))
        wanted = tested_limits(config, {**config.thresholds, **limits}, place)
        entry = _same(read_ledger(journal), versions, wanted)
        if entry is None or (entry.state == "undecided" and len(entry.draws) < budget):
            candidate = entry.candidate if entry else _candidate(journal, config, policy, versions, wanted)
            _draw(config, run_dir, journal, candidate, budget)
            entry = line_of(journal, candidate.number)
        return entry


def tested_limits(config: Config, limits: Mapping[str, float], place: int) -> tuple[TestedLimit, ...]:
    """The limits of a candidate, each at the level of this place. Raises UserError where no draws suffice."""
    unknown = [name for name in limits if name not in config.thresholds]
    if unknown:
        raise UserError(f"--limit {unknown[0]}: this run's limits are {', '.join(config.thresholds)}")
    labels, cost_max, signal = config.feedback.labels_each, config.dual.cost_max, config.feedback.signal
    if signal == "cost_model":
        raise UserError("feedback.signal=cost_model: scores without stated bounds are estimated only, never certified")
    levels = {name: level_of(config, name, place) for name in limits}
    if not all(levels.values()):
        raise UserError(
            f"certificate.shares are used up: {place - 1} candidates of this run were not certified, so a further one"
            " cannot be"
        )
    tested = tuple(
        TestedLimit(name, limit, levels[name], config.deltas[name], signal, labels, cost_max)
        for name, limit in limits.items()
    )
    for one in tested:
        possible = (
            0 < one.limit < 1 if signal == "unsafe_rate" else logit_limit(one.limit, labels, cost_max) is not None
        )
        if not possible:
            raise UserError(
                f"limit {one.name} of {one.limit:g} cannot be certified by any number of draws: it must lie inside the"
                f" measure's bounds, a logit's also above -C = {-cost_max:g} by the bias of {labels} labels,"
                f" {one.bias:.2f}"
            )
    return tested


def level_of(config: Config, name: str, place: int) -> float:
    """alpha of a limit for the candidate in this place: its part of what the mixture's test leaves of delta."""
    given = config.certificate
    shares = None if given.shares is None else tuple(given.shares)
    return Allocation(shares).level(config.deltas[name] * (1.0 - given.mixture), place)


def siblings(config: Config, run_dir: Path) -> list[str]:
    """Other runs beside this one with the same recipe but for the seed: who trains until one passes must see it."""
    mine = {**config.fixed_settings(), "seed": None}
    found = []
    for folder in sorted(run_dir.parent.iterdir()):
        if folder != run_dir and (folder / JOURNAL).is_file():
            with open_folder(folder) as other:
                recipe = Config.model_validate(other.recipe)
            if {**recipe.fixed_settings(), "seed": None} == mine:
                found.append(folder.name)
    return found


def _demand_possible(config: Config) -> None:
    if not isinstance(config.feedback, WorldFeedback):
        raise UserError(
            f"feedback.kind={config.feedback.kind}: certificates are given where a world's truth labels; other sources"
            " cannot be asked for them yet"
        )
    if config.limits:
        raise UserError(
            "limits: certificates are given under the limit on the paper's cost; those of `limits:` not yet"
        )
    if not isinstance(config.cluster, InProcess):
        raise UserError("cluster.mode=ray: certificates are given in one process; use a recipe with mode in-process")


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
            source="the world's truth",
            statement="the world's prompts, drawn with replacement; the policy was trained on them",
        ),
    )


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
        labellers = {CONSTRAINT: backends.labeller, **backends.further_labellers}
        self._feedback = FeedbackController(labellers, journal, seed=config.seed, source=config.feedback.kind)

    @property
    def _decoding(self) -> Decoding:
        return Decoding(max_tokens=self._config.rollout.max_tokens)

    def batch(self, number: int) -> None:
        """A prompt, one of the policies, an answer and its labels for each of the batch's draws."""
        draws = generator(self._config.seed, "certificate", self._candidate.number, number)
        size = self._config.certificate.batch
        prompts, prior = self._backends.prompts, self._backends.prior
        chances = None if prior is None else np.asarray(prior) / np.sum(prior)
        asked = [prompts[index] for index in draws.choice(len(prompts), size, p=chances)]
        answers = self._answers(asked, draws.choice(len(self._versions), size).tolist(), number)
        shares = {
            limit.name: self._feedback.unsafe_shares(answers, limit.labels_each, limit.name, number)
            for limit in self._candidate.limits
        }
        payload = {"draws": [answer.id for answer in answers], "shares": shares}
        self._journal.once(f"{BATCH}{number}", lambda: payload)

    def _answers(self, prompts: Sequence[Prompt], authors: Sequence[int], number: int) -> list[Response]:
        """One answer per prompt, by the policy drawn for it, in the order of drawing."""
        answers: dict[int, Response] = {}
        for author, version in enumerate(self._versions):
            mine = [index for index in range(len(prompts)) if authors[index] == author]
            if mine:
                self._rollout.publish(version)
                purpose = f"certificate-{number}-{version.number}"
                drawn = self._rollout.pool(purpose, [prompts[index] for index in mine], version, 1, self._decoding)
                answers |= dict(zip(mine, drawn, strict=True))
        return [answers[index] for index in range(len(prompts))]


def _draw(config: Config, run_dir: Path, journal: Journal, candidate: Candidate, budget: int) -> None:
    """Batches until the candidate is decided or has had its budget."""
    backends = in_process.make_backends(config, run_dir)
    try:
        journal.round = candidate.round
        asking = _Asking(config, journal, backends, candidate)
        while True:
            entry = line_of(journal, candidate.number)
            if entry.state != "undecided" or len(entry.draws) >= budget:
                return
            asking.batch(len(entry.draws) // config.certificate.batch)
    finally:
        backends.close()
