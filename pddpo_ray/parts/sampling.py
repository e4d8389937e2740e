"""Rollouts as the methods see them: answers of policies whose delivery was verified, the same on one engine or many.

The seed of a prompt decides its draws, so neither the number of engines nor the size of a batch changes anything.
Samples are in the journal before they are labelled; as many come back as were asked for, or the run stops.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice, pairwise

from pddpo_ray.contracts import Draw, RolloutEngine
from pddpo_ray.errors import RunError
from pddpo_ray.journal import Journal
from pddpo_ray.records import Array, CandidateSet, Decoding, Delivery, PolicyVersion, Prompt, Response, by_prompt
from pddpo_ray.rollout.delivery_check import VerifiedDelivery
from pddpo_ray.theory.seeds import generator, seed_of

LARGEST_BATCH = 2048
"""Most answers in one call of an engine, all of which are drawn again if it is lost."""
BASELINE_TOP_P = 0.9
"""Nucleus of the baseline, which confines it to common answers of the reference."""
BESIDES = "sample-scorecard"
"""Phase of the scorecard's questions to a policy."""
LogProbs = Callable[[PolicyVersion, Sequence[Response]], Array]


VerifyDelivery = Callable[[RolloutEngine, Delivery, PolicyVersion], VerifiedDelivery]
"""Shows that an engine holds a version, or raises RunError (`rollout.delivery_check.DeliveryCheck`)."""


@dataclass(frozen=True)
class Wanted:
    """n answers per prompt for one purpose, which their seeds follow from."""

    purpose: str
    prompts: Sequence[Prompt]
    n: int
    alike: bool = False
    """Whether all rounds draw it from the same seeds, so that their answers differ by the policies alone."""


@dataclass(frozen=True)
class Proposal:
    """Where a round's candidates come from.

    `share` of them come from the reference at `temperature` (0: all from the round's policy). With `pool` > 0 that many
    answers per prompt are drawn once, before the first round, and every round picks among them; with 0 the reference
    is delivered and sampled in every round. It then gives `baseline` answers, with a nucleus of `baseline_top_p`, to
    each prompt that no round asked before (0: all prompts have theirs).
    """

    candidates: int = 16
    share: float = 0.5
    temperature: float = 1.1
    pool: int = 64
    baseline: int = 0
    baseline_top_p: float = 1.0
    listed: Mapping[str, Sequence[Response]] = field(default_factory=dict)
    """Every answer there is, by prompt: they are the candidates, and none are drawn. Empty: they are drawn."""

    @property
    def from_reference(self) -> int:
        return round(self.candidates * self.share)


class RolloutController:
    """Samples through any number of engines. `log_probs` is the trainer's scorer.

    What is wanted at a time goes out in one batch per engine, or more of about `largest_batch` answers. `besides` is
    what every policy is asked too (`scorecard.questions`).
    """

    def __init__(
        self,
        engines: Sequence[RolloutEngine],
        journal: Journal,
        *,
        seed: int,
        decoding: Decoding,
        reference: PolicyVersion,
        proposal: Proposal,
        log_probs: LogProbs,
        verify: VerifyDelivery,
        largest_batch: int = LARGEST_BATCH,
        besides: Sequence[Wanted] = (),
    ) -> None:
        self._extra_orders = tuple(besides)
        self._engines = tuple(engines)
        self._journal = journal
        self._seed = seed
        self._decoding = decoding
        self._reference = reference
        self._proposal = proposal
        self._log_probs = log_probs
        self._verify = verify
        self._largest_batch = largest_batch
        self._verified_versions: dict[str, int] = {}
        self._published_versions: set[int] = set()
        self._announcements: set[tuple[int, int]] = set()
        self._pool: dict[str, list[Response]] | None = None

    # --- delivery -----------------------------------------------------------------------------------------------

    def publish(self, policy: PolicyVersion) -> None:
        """Hands a version to every engine and verifies it there. Raises RunError before anything could be sampled."""
        first_time = (self._journal.round, policy.number) not in self._announcements
        self._published_versions.add(policy.number)
        self._announcements.add((self._journal.round, policy.number))
        if first_time:
            # The round's own policy is the phase that every report knows; others are named.
            phase = "publish" if policy.name == f"policy-{self._journal.round}" else f"publish-{policy.name}"
            self._journal.once(phase, lambda: self._deliver_to_engines(policy))
        # Engines forget what the journal does not: after a restart a finished phase is no delivery.
        self._deliver_to_engines(policy)

    def _deliver_to_engines(self, policy: PolicyVersion) -> int:
        """Delivers the version to each engine without it and verifies it. Returns their number."""
        if policy.number not in self._published_versions:
            raise RunError(
                f"{policy.name} was not published: nothing is sampled from a version without a delivery check"
            )
        engines = [
            engine
            for engine in self._engines
            if engine.version != policy.number or self._verified_versions.get(engine.name) != policy.number
        ]
        began = time.monotonic()
        for engine in engines:
            self._deliver(engine, policy)
        if engines:
            self._journal.add_metrics({"rollout/sync_seconds": time.monotonic() - began})
        return len(engines)

    def _deliver(self, engine: RolloutEngine, policy: PolicyVersion) -> None:
        self._verified_versions.pop(engine.name, None)
        delivery = engine.deliver(policy)
        try:
            check = self._verify(engine, delivery, policy)
        except RunError:
            # For the record; the phase that fails keeps nothing of its own.
            self._journal.add_at_once(lambda: self._journal.add_delivery(delivery, False, None))
            raise
        self._verified_versions[engine.name] = policy.number
        self._journal.add_delivery(delivery, True, check.canary_difference)

    # --- sampling -----------------------------------------------------------------------------------------------

    def sample(
        self, prompts: Sequence[Prompt], policy: PolicyVersion, pair_prompts: Sequence[Prompt] = (), each: int = 1
    ) -> list[Response]:
        """`each` answers per prompt, prompt by prompt: what the cost estimate labels.

        The policy's own candidates for `pair_prompts` are drawn in the same batch; `candidates` finds them.
        """
        orders = [Wanted("cost", prompts, each)]
        if pair_prompts and not self._proposal.listed:
            orders.append(self._candidate_order(pair_prompts))
        self._journal.once("sample", lambda: len(self._draw_and_add(orders, policy, self._decoding)))
        if policy.number != self._reference.number:
            self._draw_extra_answers(policy)
        return self._journal.samples(self._journal.round, "cost")

    def ask_reference_besides(self) -> None:
        """What every policy is asked in addition, asked of the reference."""
        if self._extra_orders and not self._journal.is_finished(BESIDES):
            self.publish(self._reference)
        self._draw_extra_answers(self._reference)

    def _draw_extra_answers(self, policy: PolicyVersion) -> None:
        """In batches of its own, so that no other draw depends on it."""
        if self._extra_orders:
            orders = self._extra_orders
            self._journal.once(BESIDES, lambda: len(self._draw_and_add(orders, policy, self._decoding)))

    def pool(
        self, purpose: str, prompts: Sequence[Prompt], policy: PolicyVersion, n: int, decoding: Decoding
    ) -> list[Response]:
        """n answers per prompt, prompt by prompt, drawn once for a purpose (baseline, calibration, proposals).

        The version is delivered only if they were not drawn before.
        """
        phase = f"pool-{purpose}"
        if not self._journal.is_finished(phase):
            self.publish(policy)
        self._journal.once(phase, lambda: len(self._draw_and_add([Wanted(purpose, prompts, n)], policy, decoding)))
        return self._journal.samples(self._journal.round, purpose)

    def candidates(self, prompts: Sequence[Prompt], policy: PolicyVersion) -> list[CandidateSet]:
        """Per prompt the answers from which the explorer chooses, part from the policy, part from the reference.

        Both log-probabilities are undecoded: exact resampling weights need a proposal at (relative) temperature 1.
        """
        payload = self._journal.once("candidates", lambda: self._propose(prompts, policy))
        batches = [self._journal.samples(self._journal.round, purpose) for purpose in ("candidate", "proposal")]
        answers = {answer.id: answer for responses in [*batches, *self._proposals().values()] for answer in responses}
        return [
            CandidateSet(
                prompt,
                tuple(answers[name] for name in entry["responses"]),
                tuple(entry["log_policy"]),
                tuple(entry["log_proposal"]),
            )
            for prompt, entry in zip(prompts, payload, strict=True)
        ]

    def _candidate_order(self, prompts: Sequence[Prompt]) -> Wanted:
        return Wanted("candidate", prompts, self._proposal.candidates - self._proposal.from_reference)

    def _propose(self, prompts: Sequence[Prompt], policy: PolicyVersion) -> list[dict[str, list[str] | list[float]]]:
        sets = self._list_sets(prompts, policy) if self._proposal.listed else self._draw_sets(prompts, policy)
        answers = [response for responses in sets for response in responses]
        log_policy = [float(value) for value in self._log_probs(policy, answers)]
        log_proposal = [float(value) for value in self._log_probs(self._reference, answers)]
        ends = list(accumulate(map(len, sets), initial=0))
        return [
            {
                "responses": [response.id for response in responses],
                "log_policy": log_policy[begin:end],
                "log_proposal": log_proposal[begin:end],
            }
            for responses, (begin, end) in zip(sets, pairwise(ends), strict=True)
        ]

    def _list_sets(self, prompts: Sequence[Prompt], policy: PolicyVersion) -> list[list[Response]]:
        """All answers to each prompt, in the journal as the round's candidates."""
        self._draw_baseline(prompts)
        sets = [
            [
                replace(answer, id=f"{self._journal.round}-candidate-{index}-{number}", policy_version=policy.number)
                for number, answer in enumerate(self._proposal.listed[prompt.id])
            ]
            for index, prompt in enumerate(prompts)
        ]
        self._journal.add_samples("candidate", [response for responses in sets for response in responses])
        return sets

    def _draw_sets(self, prompts: Sequence[Prompt], policy: PolicyVersion) -> list[list[Response]]:
        """The policy's own candidates for each prompt, and those of the reference."""
        order, count = self._candidate_order(prompts), self._proposal.from_reference
        answers = self._journal.samples(self._journal.round, order.purpose)
        if not answers:
            answers = self._draw_and_add([order], policy, self._decoding)
        if [response.prompt.id for response in answers] != [prompt.id for prompt in prompts for _ in range(order.n)]:
            raise RunError(
                f"round {self._journal.round}: candidates were drawn for other prompts than are asked for now"
            )
        self._draw_baseline(prompts)
        if count and not self._proposal.pool:
            decoding = replace(self._decoding, temperature=self._proposal.temperature)
            self._published_versions.add(self._reference.number)
            proposals = self._draw_and_add([Wanted("proposal", prompts, count)], self._reference, decoding)
        else:
            proposals = self._pick_proposals(prompts, count)
        return [
            [*answers[index * order.n : (index + 1) * order.n], *proposals[index * count : (index + 1) * count]]
            for index in range(len(prompts))
        ]

    def _draw_baseline(self, prompts: Sequence[Prompt]) -> None:
        """The baseline's answers to those prompts that have none yet, drawn from the reference."""
        if not self._proposal.baseline:
            return
        known_ids = {answer.prompt.id for answer in self._journal.samples(purpose="baseline")}
        new_prompts = list({prompt.id: prompt for prompt in prompts if prompt.id not in known_ids}.values())
        if new_prompts:
            self._published_versions.add(self._reference.number)
            decoding = replace(self._decoding, top_p=self._proposal.baseline_top_p)
            self._draw_and_add([Wanted("baseline", new_prompts, self._proposal.baseline)], self._reference, decoding)

    def _pick_proposals(self, prompts: Sequence[Prompt], count: int) -> list[Response]:
        """`count` answers per prompt out of the pool of proposals, without repetition within a round's set."""
        if not count:
            return []
        answers = []
        for index, prompt in enumerate(prompts):
            pool = self._proposals().get(prompt.id, [])
            if len(pool) < count:
                raise RunError(
                    f"the pool of proposals has {len(pool)} answers to prompt {prompt.id}, {count} are needed"
                )
            draws = generator(self._seed, self._journal.round, "proposal", index)
            answers += [pool[place] for place in draws.choice(len(pool), count, replace=False)]
        return answers

    def _proposals(self) -> dict[str, list[Response]]:
        """The pool of proposals by prompt; it does not change once it was drawn."""
        if self._pool is None:
            self._pool = by_prompt(self._journal.samples(0, "proposal"))
        return self._pool

    def _draw_and_add(self, orders: Sequence[Wanted], policy: PolicyVersion, decoding: Decoding) -> list[Response]:
        """Draws from a published policy in one batch per engine and journals the answers. -> those, prompt by prompt"""
        self._deliver_to_engines(policy)
        round_, began = self._journal.round, time.monotonic()
        requests = [
            _Request(prompt, seed_of(self._seed, *(() if order.alike else (round_,)), order.purpose, index), order.n)
            for order in orders
            for index, prompt in enumerate(order.prompts)
        ]
        replies = zip(requests, self._spread_requests(requests, decoding), strict=True)
        seconds = time.monotonic() - began
        answers: dict[str, list[Response]] = {}
        for order in orders:
            answers[order.purpose] = [
                Response(
                    f"{round_}-{order.purpose}-{index}-{number}",
                    request.prompt,
                    tuple(ids),
                    text,
                    policy.number,
                    request.seed,
                    value,
                )
                for index, (request, draws) in enumerate(islice(replies, len(order.prompts)))
                for number, (ids, text, value) in enumerate(draws)
            ]
            self._journal.add_samples(order.purpose, answers[order.purpose])
        self._add_speed(answers, seconds, whole=not any(order.alike for order in orders))
        return [response for responses in answers.values() for response in responses]

    def _add_speed(self, drawn: Mapping[str, Sequence[Response]], seconds: float, *, whole: bool) -> None:
        """Tokens of each purpose, and its part of a batch's seconds by its part of the tokens; `whole`: the round's
        speed is that of this batch."""
        tokens = {purpose: sum(len(answer.token_ids) for answer in answers) for purpose, answers in drawn.items()}
        total = max(1, sum(tokens.values()))
        for purpose, count in tokens.items():
            spent = seconds * count / total
            self._journal.add_metrics({f"rollout/{purpose}_tokens": count, f"rollout/{purpose}_seconds": spent})
        if seconds > 0 and whole:
            self._journal.add_metrics({"rollout/tokens_per_second": total / seconds})

    def _spread_requests(self, requests: Sequence[_Request], decoding: Decoding) -> list[list[Draw]]:
        """Sends batches of about the same size to the engines in turn; each works through its own in order."""
        batches = _batches(requests, len(self._engines), self._largest_batch)
        draws: list[list[list[Draw]]] = [[] for _ in batches]

        def work(engine: int) -> None:
            for number in range(engine, len(batches), len(self._engines)):
                draws[number] = self._ask_engine(self._engines[engine], batches[number], decoding)

        if len(self._engines) == 1:
            work(0)
        else:
            with ThreadPoolExecutor(len(self._engines)) as threads:
                list(threads.map(work, range(len(self._engines))))
        return [answers for batch in draws for answers in batch]

    def _ask_engine(self, engine: RolloutEngine, requests: Sequence[_Request], decoding: Decoding) -> list[list[Draw]]:
        counts = [request.n for request in requests]
        answers = engine.sample(
            [request.prompt for request in requests], [request.seed for request in requests], counts, decoding
        )
        if [len(draws) for draws in answers] != counts:
            count = sum(len(draws) for draws in answers)
            raise RunError(f"engine {engine.name} was asked for {sum(counts)} answers and returned {count}")
        return answers


@dataclass(frozen=True)
class _Request:
    """n answers to one prompt; the seed decides them."""

    prompt: Prompt
    seed: int
    n: int


def _batches(requests: Sequence[_Request], engines: int, largest: int) -> list[list[_Request]]:
    """One batch per engine, or more of about `largest` answers, all of about one size; a prompt's stay together."""
    total = max(1, sum(request.n for request in requests))
    batches: list[list[_Request]] = [[] for _ in range(max(engines, math.ceil(total / largest)))]
    start = 0
    for request in requests:
        batches[int((start + request.n / 2) / total * len(batches))].append(request)
        start += request.n
    return [batch for batch in batches if batch]
