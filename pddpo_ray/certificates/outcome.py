"""What a run hands over: the released policy or why there is none, what is certified of it, where its weights are.

The same object leads the terminal, `result.json` and the report. What is certified comes from the ledger, with its
sentences; without a certificate the estimates of the round's own labels stand there, and that nothing is certified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self

from pddpo_ray.certificates.certified import read_certified
from pddpo_ray.certificates.ledger import Entry, read_ledger
from pddpo_ray.certificates.release_history import RULE, Releases, policies_of
from pddpo_ray.config import Policies
from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.journal.transactions import Store
from pddpo_ray.limits.estimate import LimitEstimate
from pddpo_ray.limits.quantities import Limit
from pddpo_ray.parts.due_labels import rounds_labelled_in
from pddpo_ray.parts.held_limit import OUTSIDE, UNSAFE_RATE
from pddpo_ray.records import CostEstimate
from pddpo_ray.storage.whole_files import ADAPTER_BASE, ARTIFACTS, WEIGHTS

RUN = "RUN"
"""Stands for the run's folder where a path must stay right when the folder moves."""
SCALE = "cost/scale"
"""Metric of a round, after the limit's prefix: the length of the measure's range, the unit of exact violations."""


ORDER, NOT_ASKED = "to-certify", "not-certified"
"""Phases at a run's end: who is put to the test, or why nobody is."""
UNCERTIFIED = "Nothing is certified. An estimate of a round's own labels is no certificate that a limit is kept."


@dataclass(frozen=True)
class Outcome:
    """Which policy is released, what is certified or known of the limits it is to keep, and where its weights are."""

    round: int | None
    """The released round; None: no round is released, and `limits` are those of the last one."""
    policy: str | None
    by: str | None
    """Who released it: `rule` (a certificate did), or the name of a person."""
    reason: str
    limits: tuple[LimitEstimate, ...]
    certificate: tuple[str, ...] = ()
    """The sentences that are certified of what is released; (): none are."""
    tested: int = 0
    """Policies that the run has put to the test."""
    used_up: bool = False
    """Whether the certification set has no prompt left to draw: no further test can decide anything."""
    mixture: bool = False
    """Whether the mixture of all rounds or of the last ones is released: no round by itself is, and it is certified."""
    weights: str | None = None
    """Folder of the released weights, relative to the run's folder."""
    kind: Literal["model", "adapter", "table", "log-linear"] | None = None
    """A transformers model, a peft adapter of `base`, a table of log-probabilities, or weights of features."""
    base: str | None = None
    temperature: float = 1.0
    """Of the policy: the estimates are about answers at this temperature, with nothing cut off."""

    @property
    def headline(self) -> str:
        """The outcome in one sentence."""
        if self.mixture:
            return f"Released: {self.policy}. {self.certificate[0]}"
        if self.round is None:
            return f"No policy is certified, and none is released: {self.reason}."
        title = f"Released: {self.policy}, the policy of round {self.round}"
        if self.by == RULE and self.certificate:
            return f"{title}. {self.certificate[0]}"
        sentence = self.certificate[0] if self.certificate else "It is not certified."
        return f"{title}, by {self.by} ({self.reason}). {sentence}"

    @property
    def statement(self) -> str:
        """What is certified besides, or what the estimates of the limits are worth."""
        return " ".join(self.certificate[1:]) if self.certificate else UNCERTIFIED

    def load(self, run: str | Path = RUN) -> str | None:
        """Python that loads the released policy; None if there is none."""
        match self.kind:
            case "model":
                return f'transformers.AutoModelForCausalLM.from_pretrained("{run}/{self.weights}")'
            case "adapter":
                base = f'transformers.AutoModelForCausalLM.from_pretrained("{run}/{self.base}")'
                return f'peft.PeftModel.from_pretrained({base}, "{run}/{self.weights}/adapter")'
            case "table" | "log-linear":
                return f'safetensors.numpy.load_file("{run}/{self.weights}/{WEIGHTS}")'
        return None

    def serve(self, run: str | Path = RUN) -> str | None:
        """The command that serves the released policy; None if none can speak. `run` as a shell reads it."""
        return f"pddpo serve {run}" if self.kind in ("model", "adapter") else None

    def export(self, run: str | Path = RUN) -> str | None:
        """The command that writes the released policy as a folder for transformers and vLLM; None as for `serve`."""
        return f"pddpo export {run} --to DIR" if self.kind in ("model", "adapter") else None

    def as_json(self) -> dict[str, Any]:
        """`outcome` of result.json; paths begin at the run's folder."""
        texts = {"headline": self.headline, "statement": self.statement}
        commands = {"load": self.load(), "export": self.export(), "serve": self.serve()}
        return {**asdict(self), "limits": [asdict(limit) for limit in self.limits], **texts, **commands}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """The outcome that `as_json` wrote."""
        values = {field.name: stored[field.name] for field in fields(cls) if field.name in stored}
        limits = tuple(LimitEstimate(**limit) for limit in stored["limits"])
        return cls(**values | {"limits": limits, "certificate": tuple(stored.get("certificate", ()))})


def outcome_of(
    journal: JournalReader,
    stated_limits: Sequence[Limit],
    run_dir: Path,
    *,
    policies: Policies,
    temperature: float = 1.0,
) -> Outcome:
    """The outcome as the journal has it now. `policies` says what the run's policies are."""
    now, ledger = Releases(Store(journal.engine, journal.run_id)).now(), read_ledger(journal)
    spent = any(entry.used_up for entry in ledger)
    if now.current is None:
        rounds = journal.next_round - 1
        limits = estimates_of(journal, stated_limits, rounds)
        if now.mixture is not None:
            mixture, count = now.mixture, len(ledger)
            return Outcome(None, mixture.policy, now.by, "", limits, mixture.statement, count, mixture=True)
        if now.stands_in:
            return Outcome(None, None, None, now.reason, limits, tested=len(ledger), used_up=spent)
        entries = [entry.about({limit.name: limit.cost_limit for limit in stated_limits}) for entry in ledger]
        reason = _why_nothing(journal, rounds, entries)
        return Outcome(None, None, None, reason, limits, tested=len(ledger), used_up=spent)
    version = policies_of(journal)[now.current]
    kind, base = _kind(journal, run_dir / ARTIFACTS / version.version.path, policies=policies)
    certificate = next((entry for entry in read_certified(journal) if entry.sha256 == (version.version.sha256,)), None)
    return Outcome(
        round=now.current,
        policy=version.version.name,
        by=now.by,
        reason=now.reason,
        limits=estimates_of(journal, stated_limits, now.current),
        certificate=() if certificate is None else certificate.statement,
        tested=len(ledger),
        weights=f"{ARTIFACTS}/{version.version.path}",
        kind=kind,
        base=base,
        temperature=temperature,
    )


def _why_nothing(journal: JournalReader, rounds: int, ledger: Sequence[Entry]) -> str:
    if not rounds:
        return "no round is finished"
    if ledger:
        lines = (f"{entry.candidate.policy} is {entry.state} after {entry.count} draws" for entry in ledger)
        return f"under the recipe's limits {'; '.join(lines)}"
    if journal.phases(like=ORDER):
        return "by its own labels no round keeps every limit, so none was put to the test"
    reasons = [phase.payload["reason"] for phase in journal.phases(like=NOT_ASKED)]
    return reasons[-1] if reasons else "the run tests its policies when its rounds are done"


def estimates_of(journal: JournalReader, limits: Sequence[Limit], number: int | None) -> tuple[LimitEstimate, ...]:
    """What the labels of a round say about every limit."""
    estimates = {step.constraint: step.estimate for step in journal.dual_steps() if step.round == number}
    metrics = journal.metrics().get(number, {}) if number is not None else {}
    return tuple(
        said_of(limit, prefix, estimates[limit.name], metrics)
        for prefix, limit in with_prefixes(limits)
        if limit.name in estimates
    )


def said_of(limit: Limit, prefix: str, estimate: CostEstimate, metrics: Mapping[str, float]) -> LimitEstimate:
    """What a round's labels say about a limit, by its estimate and the round's metrics."""
    outside = int(metrics.get(f"{prefix}{OUTSIDE}", 0))
    return LimitEstimate.of(limit, estimate, metrics.get(f"{prefix}{UNSAFE_RATE}"), outside)


def with_prefixes(limits: Sequence[Limit]) -> list[tuple[str, Limit]]:
    """Limits with the prefix of their metrics' names: none for the first one."""
    return [("" if index == 0 else f"{limit.name}/", limit) for index, limit in enumerate(limits)]


def note_unsafe_rates(journal: Journal, limits: Sequence[Limit], number: int) -> None:
    """Journals the share of unsafe labels, shown beside every logit. Runs as a round closes."""
    for round_, (prefix, limit) in product(rounds_labelled_in(journal, number), with_prefixes(limits)):
        share = journal.unsafe_share(round_, limit.name) if limit.quantity.kind == "logit" else None
        if share is not None:
            journal.round = round_
            journal.add_metrics({f"{prefix}{UNSAFE_RATE}": share})
    journal.round = number


def _kind(
    journal: JournalReader, stored: Path, *, policies: Policies
) -> tuple[Literal["model", "adapter", "table", "log-linear"], str | None]:
    if policies != "language models":
        return "table" if policies == "tables" else "log-linear", None
    if not (stored / ADAPTER_BASE).exists():
        return "model", None
    reference = next(entry.version for entry in journal.versions() if entry.stage == "reference")
    return "adapter", f"{ARTIFACTS}/{reference.path}"
