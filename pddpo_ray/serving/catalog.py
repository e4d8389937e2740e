"""What can be asked for: the policies of a run by model name, read from its journal.

mixture     an even draw of a round per conversation: the theorem's output
tail-k      the same of rounds k to the last, where that is certified
released    the best certified policy, or what was released by hand; a certified mixture where no round is released
round-k     the policy of one round
reference   the model that everything began with

The draw keeps no state: every round gets a pseudo-random weight from (seed, round, conversation) under the run's
secret, and the heaviest one is drawn. So every entrance draws alike, and when a round joins the mixture only its own
share of the conversations, one in K + 1, moves: to the new round. Without the secret nobody can name a conversation so
that it meets a round of their choice.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select

from pddpo_ray.certificates.certified import PHASE as CERTIFIED
from pddpo_ray.certificates.certified import Certified, read_certified
from pddpo_ray.certificates.release_history import UNRELEASED, Released, Releases, policies_of, released_now
from pddpo_ray.certificates.staging import Stage, keyed
from pddpo_ray.journal import JournalReader
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.schema import phase as phase_table
from pddpo_ray.journal.schema import prompt as prompt_table
from pddpo_ray.journal.schema import release as release_table
from pddpo_ray.journal.schema import round_ as round_table
from pddpo_ray.journal.schema import run as run_table
from pddpo_ray.journal.schema import sample as sample_table
from pddpo_ray.journal.transactions import Store
from pddpo_ray.records import PolicyVersion
from pddpo_ray.serving.keys import Scope

MIXTURE, RELEASED, REFERENCE, NONE = "mixture", "released", "reference", "none"
ROUND, TAIL = "round-", "tail-"
CANARIES = 3
Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Canary:
    """An answer that the run's own engine drew, with its log-probability under the policy."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    log_prob: float


@dataclass(frozen=True)
class ServedPolicy:
    """One round's policy (round 0: the reference). `release` is its state, `reason` why it was released.

    The canaries prove that an engine holds these weights: each loader compares.
    """

    round: int
    version: PolicyVersion
    multiplier: float | None
    release: str
    reason: str = ""
    canaries: tuple[Canary, ...] = ()
    certificate: Certified | None = None
    created: int = 0
    """When its round was finished, in seconds since the epoch; of the reference: when the run began."""


class NotServed(Exception):
    """The model that was asked for cannot answer. `status` is the HTTP status, the message is for the client."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Catalog:
    """An unchanging view of a run; a follower replaces it as a whole."""

    run: str
    policies: Mapping[int, ServedPolicy]
    """By round; 0 is the reference."""
    mixture: tuple[int, ...]
    """Rounds that the mixture draws from: all that are finished, or the last few where the engine holds no more."""
    stamp: Stamp = (0, 0, 0)
    states: Released = field(default_factory=Released)
    certified_mixture: Certified | None = None
    """The certificate of the mixture as it is drawn from here, of all its rounds."""
    tails: Mapping[str, Certified] = field(default_factory=dict)
    """Certified mixtures of the last few rounds by their names, the one of the most rounds first."""

    @property
    def released(self) -> int | None:
        """The released round."""
        return self.states.current

    @property
    def rounds(self) -> tuple[int, ...]:
        return tuple(number for number in sorted(self.policies) if number > 0)

    @property
    def stage(self) -> Stage | None:
        """The release under way, of a round that can be loaded; None: there is none."""
        stage = self.states.stage
        return stage if stage is not None and stage.round in self.policies and self.released is not None else None

    def choose(
        self, model: str, conversation: str, seed: int = 0, secret: str = "", *, now_ms: int = 0
    ) -> ServedPolicy:
        """The policy that answers; `now_ms` decides how far a staged release is. Raises NotServed: no such model, or
        nothing released yet."""
        if model == RELEASED and self.released is not None:
            new = self.stage is not None and self.stage.answers(conversation, now_ms, seed, secret)
            return self.policies[self.stage.round if self.stage is not None and new else self.released]
        name = self.drawn_mixture(model)
        if name == MIXTURE and not self.mixture:
            raise NotServed(503, "no_round", "no round is finished yet: ask again, or ask for reference")
        if name is not None:
            return self.policies[drawn_round(conversation, self.rounds_of(name), seed, secret)]
        if model == RELEASED:
            if self.states.stands_in:
                return self.policies[0]
            message = (
                "nothing is released: no policy of this run is certified yet; with a key of scope inspect ask for"
                " mixture or a round, which are marked as uncertified"
            )
            raise NotServed(503, "nothing_released", message)
        number = 0 if model == REFERENCE else _round_of(model)
        if number not in self.policies:
            raise NotServed(404, "model_not_found", f"the model {model!r} does not exist: GET /v1/models lists them")
        return self.policies[number]

    def needed_scope(self, model: str) -> Scope:
        """Single policies, and a mixture of rounds that nobody has certified or released, are for inspection."""
        open_to_all = model == RELEASED or model in self.tails
        open_to_all = open_to_all or (model == MIXTURE and self.certified_mixture is not None)
        return Scope.CHAT if open_to_all else Scope.INSPECT

    @property
    def released_mixture(self) -> str | None:
        """The mixture that is released because no round is."""
        mixture = self.states.mixture
        if mixture is None:
            return None
        return MIXTURE if mixture == self.certified_mixture else f"{TAIL}{mixture.rounds[0]}"

    def drawn_mixture(self, model: str) -> str | None:
        """The mixture that a model's answers are drawn from; None: they are those of one policy, or there is none."""
        if model == RELEASED:
            return self.released_mixture
        return model if model == MIXTURE or model in self.tails else None

    def rounds_of(self, mixture: str) -> tuple[int, ...]:
        """The rounds that a mixture draws from."""
        return self.mixture if mixture == MIXTURE else self.tails[mixture].rounds

    def state_of(self, model: str, policy: ServedPolicy) -> str:
        """Release state of an answer: a mixture has one of its own, whatever became of its rounds."""
        name = self.drawn_mixture(model)
        if name is None:
            return policy.release
        return "released" if name == self.released_mixture else UNRELEASED

    def certificate_of(self, model: str, policy: ServedPolicy) -> Certified | None:
        """What an answer's author has been certified for, if it has."""
        name = self.drawn_mixture(model)
        if name is None:
            return policy.certificate
        return self.certified_mixture if name == MIXTURE else self.tails[name]

    def models(self, scope: Scope) -> list[dict[str, Any]]:
        """Entries of `GET /v1/models` that a key may ask for."""
        entries = []
        if self.released is not None:
            entries.append(_entry(self, RELEASED, self.policies[self.released], scope))
        elif self.states.stands_in:
            entries.append(_entry(self, RELEASED, self.policies[0], scope))
        elif self.released_mixture is not None:
            entries.append(_model(RELEASED, *self._mixture_summary(self.released_mixture)))
        if self.mixture and scope.covers(self.needed_scope(MIXTURE)):
            entries.append(_model(MIXTURE, *self._mixture_summary(MIXTURE)))
        entries += [_model(name, *self._mixture_summary(name)) for name in self.tails]
        if scope.covers(Scope.INSPECT):
            entries += [_entry(self, f"{ROUND}{number}", self.policies[number], scope) for number in self.rounds]
            entries += [_entry(self, REFERENCE, self.policies[0], scope)] if 0 in self.policies else []
        return entries

    def _mixture_summary(self, name: str) -> tuple[dict[str, Any], int]:
        """What is said of it, and when its last round was finished."""
        rounds = self.rounds_of(name)
        newest = self.policies[rounds[-1]]
        summary = {"run": self.run, "rounds": list(rounds), "whole": rounds == self.rounds}
        summary |= {"release": self.state_of(name, newest)} | stated_certificate(self.certificate_of(name, newest))
        return summary, newest.created


def stated_certificate(certificate: Certified | None) -> dict[str, Any]:
    """`certificate` and its sentences, as every model's entry and the model card say them."""
    if certificate is None:
        return {"certificate": NONE, "statement": ["nothing is certified of this policy"]}
    return {"certificate": certificate.header, "statement": list(certificate.statement)}


def facts(catalog: Catalog, model: str, policy: ServedPolicy, scope: Scope) -> dict[str, Any]:
    """What every reply says about who wrote it; which round that was, to a key for inspection."""
    certificate = catalog.certificate_of(model, policy)
    author = {"round": policy.round, "policy_version": policy.version.number, "multiplier": policy.multiplier}
    return {
        "run": catalog.run,
        "model": model,
        **(author if scope.covers(Scope.INSPECT) else {}),
        "release": catalog.state_of(model, policy),
        "certificate": NONE if certificate is None else certificate.header,
    }


def stamp_of(store: Store) -> Stamp:
    """Cheap to read, and different whenever a round was finished, a release changed or a policy was certified."""
    finished = select(func.coalesce(func.max(round_table.c.round), 0)).where(
        round_table.c.run == store.run, round_table.c.finished_ms.is_not(None)
    )
    changes = select(func.coalesce(func.max(release_table.c.id), 0)).where(release_table.c.run == store.run)
    certified = select(func.count()).where(phase_table.c.run == store.run, phase_table.c.phase.like(f"{CERTIFIED}%"))
    with reading(store.engine) as connection:
        first, second, third = (int(connection.execute(query).scalar_one()) for query in (finished, changes, certified))
    return first, second, third


def read_catalog(store: Store, mixture_max: int | None = None) -> Catalog:
    """The run as it is now. The mixture draws from the last `mixture_max` rounds (None: from all)."""
    # The stamp first: what changes while the rest is read is then seen as a change the next time.
    stamp = stamp_of(store)
    journal = JournalReader(store.engine, store.run)
    history, versions, certified = Releases(store).history(), policies_of(journal), read_certified(journal)
    weights = {number: entry.version.sha256 for number, entry in versions.items() if number}
    states = released_now(history, certified, weights, mixture_max=mixture_max)
    multipliers = {step.round: step.multiplier_before for step in reversed(journal.dual_steps())}
    of_weights = {certificate.sha256: certificate for certificate in reversed(certified)}
    created = _creation_times(store)
    policies: dict[int, ServedPolicy] = {}
    for number, entry in versions.items():
        policies[number] = ServedPolicy(
            number,
            entry.version,
            multipliers.get(number, entry.multiplier),
            states.state(number) if number else REFERENCE,
            states.reasons.get(number, ""),
            _canaries(store, entry.version.number),
            of_weights.get((entry.version.sha256,)),
            created.get(number, 0),
        )
    rounds = [number for number in sorted(policies) if number > 0]
    drawn = tuple(rounds if mixture_max is None else rounds[-mixture_max:])
    return Catalog(
        run=store.run,
        policies=policies,
        mixture=drawn,
        stamp=stamp,
        states=states,
        certified_mixture=(
            None if states.stands_in else of_weights.get(tuple(policies[number].version.sha256 for number in drawn))
        ),
        tails={} if states.stands_in else _tails(certified, policies, mixture_max),
    )


def _tails(
    certified: Sequence[Certified], policies: Mapping[int, ServedPolicy], mixture_max: int | None
) -> dict[str, Certified]:
    """Certified mixtures of rounds j to the last, j > 1, that the engine can hold; the most rounds first."""
    last = max(policies, default=0)
    tails: dict[str, Certified] = {}
    for certificate in sorted(certified, key=lambda certificate: certificate.rounds[0]):
        hashes = tuple(policies[number].version.sha256 for number in certificate.rounds if number in policies)
        fits = mixture_max is None or len(certificate.rounds) <= mixture_max
        if 1 < certificate.rounds[0] < certificate.rounds[-1] == last and hashes == certificate.sha256 and fits:
            tails.setdefault(f"{TAIL}{certificate.rounds[0]}", certificate)
    return tails


def _creation_times(store: Store) -> dict[int, int]:
    """Seconds since the epoch, by round; 0 is the reference."""
    rounds = select(round_table.c.round, round_table.c.finished_ms).where(
        round_table.c.run == store.run, round_table.c.finished_ms.is_not(None)
    )
    began = select(run_table.c.created_ms).where(run_table.c.id == store.run)
    with reading(store.engine) as connection:
        times = {int(row.round): int(row.finished_ms) // 1000 for row in connection.execute(rounds)}
        return times | {0: int(connection.execute(began).scalar_one()) // 1000}


def _canaries(store: Store, version: int) -> tuple[Canary, ...]:
    """The first few answers of a version that were drawn with their log-probabilities."""
    query = (
        select(sample_table.c.token_ids, sample_table.c.log_prob, prompt_table.c.token_ids.label("prompt_ids"))
        .join(prompt_table, (prompt_table.c.run == sample_table.c.run) & (prompt_table.c.id == sample_table.c.prompt))
        .where(sample_table.c.run == store.run, sample_table.c.policy_version == version)
        .where(sample_table.c.log_prob.is_not(None))
        .order_by(sample_table.c.round, sample_table.c.purpose, sample_table.c.position)
        .limit(CANARIES)
    )
    with reading(store.engine) as connection:
        rows = connection.execute(query).all()
    return tuple(Canary(tuple(row.prompt_ids), tuple(row.token_ids), row.log_prob) for row in rows)


def _round_of(model: str) -> int:
    """k of `round-k`; -1 for anything else."""
    number = model.removeprefix(ROUND)
    return int(number) if model.startswith(ROUND) and number.isascii() and number.isdigit() and number[0] != "0" else -1


def _entry(catalog: Catalog, name: str, policy: ServedPolicy, scope: Scope) -> dict[str, Any]:
    summary = facts(catalog, name, policy, scope) | {"reason": policy.reason}
    return _model(name, summary | stated_certificate(catalog.certificate_of(name, policy)), policy.created)


def _model(name: str, summary: Mapping[str, Any], created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "pddpo_ray", "pddpo": dict(summary)}


def text_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """The words of a conversation, one message a line, as an annotator reads them."""
    lines = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
        lines.append(f"{message.get('role', '')}: {content or ''}")
    return lines[0].partition(": ")[2] if len(lines) == 1 else "\n".join(lines)


def drawn_round(conversation: str, rounds: Sequence[int], seed: int = 0, secret: str = "") -> int:
    """k ~ Unif(rounds), the same for the same conversation, seed and secret (paper.md §10)."""
    if not rounds:
        raise ValueError("a mixture needs at least one round")
    return max(rounds, key=lambda number: (keyed(f"{seed}\0{number}\0{conversation}", secret), number))


def conversation_of(conversation: str | None, seed: int | None, opening: str) -> str:
    """What a request is drawn by: the conversation it names; else the sampling seed that it gives together with its
    opening, so that the same request is answered alike; else a conversation of its own.
    """
    if conversation:
        return conversation
    if seed is not None:
        return f"seed-{seed}-{hashlib.sha256(opening.encode()).hexdigest()[:16]}"
    return uuid.uuid4().hex
