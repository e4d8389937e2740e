"""What a run hands over: the released policy or why there is none, what is known of its limits, where its weights are.

The same object leads the terminal, `result.json` and the report. The release rule (design: c~ + 1.64 se <= d, reward
accuracy kept) decides at the end of a round and is journalled once. It measures accuracy on the pairs that were
labelled in the round itself: neither reward policy has been trained on them, and both are asked about the same pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np

from pddpo_ray.config import Policies
from pddpo_ray.journal import Journal, JournalReader, VersionEntry
from pddpo_ray.journal.transactions import Store
from pddpo_ray.limits.estimate import LimitEstimate
from pddpo_ray.limits.quantities import Limit
from pddpo_ray.loop.preferences import reward_rows
from pddpo_ray.records import Array, CostEstimate, LabelledPair, PolicyVersion, Response, Verdict
from pddpo_ray.serving.releases import REFUSE, RELEASE, RULE, Releases
from pddpo_ray.storage.whole_files import ADAPTER_BASE, ARTIFACTS, WEIGHTS
from pddpo_ray.theory.agreement import agreement
from pddpo_ray.theory.output import ReleaseDecision, release_decision

RUN = "RUN"
"""Stands for the run's folder where a path must stay right when the folder moves."""
UNSAFE_RATE = "cost/unsafe_rate"
"""Metric of a round, behind the limit's prefix."""
SCALE = "cost/scale"
"""Metric of a round, likewise: the length of the measure's range, in which exact violations of stated limits are."""


@dataclass(frozen=True)
class Outcome:
    """Which policy is released, what is known of the limits it is to keep, and where its weights are."""

    round: int | None
    """The released round; None: no policy is released, and `limits` and `reason` are those of the last round."""
    policy: str | None
    by: str | None
    """Who released it: `rule`, or the name of a person."""
    reason: str
    limits: tuple[LimitEstimate, ...]
    asked: int
    """How often the release rule has asked whether the limits are kept: once in every finished round."""
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
        if self.round is None:
            return f"No policy is released: {self.reason}."
        who = "by the release rule" if self.by == RULE else f"by {self.by} ({self.reason})"
        return f"Released: {self.policy}, the policy of round {self.round}, {who}."

    @property
    def statement(self) -> str:
        """What the estimates of the limits are worth."""
        return _worth(self.asked)

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
        """The command that serves the released policy; None if there is none that can speak."""
        return f"pddpo serve {run}" if self.kind in ("model", "adapter") else None

    def export(self, run: str | Path = RUN) -> str | None:
        """The command that writes the released policy as a folder for transformers and vLLM; None as for `serve`."""
        return f"pddpo export {run} --to DIR" if self.kind in ("model", "adapter") else None

    def as_json(self) -> dict[str, Any]:
        """`outcome` of result.json; paths begin at the run's folder."""
        said = {"headline": self.headline, "statement": self.statement}
        ways = {"load": self.load(), "export": self.export(), "serve": self.serve()}
        return {**asdict(self), "limits": [asdict(limit) for limit in self.limits], **said, **ways}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """The outcome that `as_json` wrote."""
        values = {field.name: stored[field.name] for field in fields(cls) if field.name in stored}
        return cls(**values | {"limits": tuple(LimitEstimate(**limit) for limit in stored["limits"])})


def outcome_of(
    journal: JournalReader,
    stated: Sequence[Limit],
    run_dir: Path,
    *,
    policies: Policies,
    temperature: float = 1.0,
) -> Outcome:
    """The outcome as the journal has it now. `policies` says what the run's policies are."""
    releases = Releases(Store(journal.engine, journal.run_id))
    history, now = releases.history(), releases.now()
    decided = [line.round for line in history if line.by == RULE and line.round is not None]
    number = now.current
    about = number if number is not None else max(decided, default=None)
    reason = now.reasons.get(about, "") if about is not None else "no round is finished"
    limits = estimates_of(journal, stated, about)
    version = _policy_of_round(journal.versions(), number)
    if version is None:
        return Outcome(None, None, None, reason, limits, len(decided))
    by = next(line.by for line in reversed(history) if line.round == number and line.action == "release")
    kind, base = _kind(journal, run_dir / ARTIFACTS / version.version.path, policies=policies)
    weights = f"{ARTIFACTS}/{version.version.path}"
    about_weights = (weights, kind, base, temperature)
    return Outcome(number, version.version.name, by, reason, limits, len(decided), *about_weights)


def estimates_of(journal: JournalReader, stated: Sequence[Limit], number: int | None) -> tuple[LimitEstimate, ...]:
    """What the labels of a round say about every limit."""
    estimates = {step.constraint: step.estimate for step in journal.dual_steps() if step.round == number}
    known = journal.metrics().get(number, {}) if number is not None else {}
    return tuple(
        LimitEstimate.of(limit, estimates[limit.name], known.get(f"{prefix}{UNSAFE_RATE}"))
        for prefix, limit in with_prefixes(stated)
        if limit.name in estimates
    )


def with_prefixes(stated: Sequence[Limit]) -> list[tuple[str, Limit]]:
    """Limits with what stands in front of the names of their metrics: nothing for the first one."""
    return [("" if index == 0 else f"{limit.name}/", limit) for index, limit in enumerate(stated)]


def note_unsafe_rates(journal: Journal, stated: Sequence[Limit], number: int) -> None:
    """Keeps the share of labels that say unsafe, which is shown beside every logit. A closing of rounds."""
    for prefix, limit in with_prefixes(stated):
        labels = journal.safety(number, limit.name) if limit.quantity.kind == "logit" else []
        said = [label for one in labels for label in one.labels if label in (Verdict.SAFE, Verdict.UNSAFE)]
        if said:
            journal.add_metrics({f"{prefix}{UNSAFE_RATE}": said.count(Verdict.UNSAFE) / len(said)})


def statement(journal: JournalReader) -> str:
    """What the estimates of a run's limits are worth."""
    history = Releases(Store(journal.engine, journal.run_id)).history()
    return _worth(sum(line.by == RULE and line.round is not None for line in history))


def _worth(asked: int) -> str:
    often = "once" if asked == 1 else f"{asked} times, once a round"
    return f"The release rule was asked {often}. An estimate is no certificate that a limit is kept."


def _policy_of_round(versions: list[VersionEntry], number: int | None) -> VersionEntry | None:
    """The last cost version of the round, as it is served."""
    made = [entry for entry in versions if entry.stage == "cost" and entry.round == number]
    return made[-1] if made else None


def _kind(
    journal: JournalReader, stored: Path, *, policies: Policies
) -> tuple[Literal["model", "adapter", "table", "log-linear"], str | None]:
    if policies != "language models":
        return "table" if policies == "tables" else "log-linear", None
    if not (stored / ADAPTER_BASE).exists():
        return "model", None
    reference = next(entry.version for entry in journal.versions() if entry.stage == "reference")
    return "adapter", f"{ARTIFACTS}/{reference.path}"


PHASE = "release"


class Scorer(Protocol):
    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array: ...


def decide(journal: Journal, scorer: Scorer, stated: Sequence[Limit], round_: int) -> ReleaseDecision:
    """Whether this round's policy may be released; the first run of it is the one that counts. A closing of rounds."""

    def apply() -> dict[str, object]:
        decision = _decision(journal, scorer, stated, round_)
        journal.add_release(RELEASE if decision.released else REFUSE, round_, RULE, decision.reason)
        return {"released": decision.released, "reason": decision.reason}

    payload = journal.once(PHASE, apply)
    return ReleaseDecision(payload["released"], payload["reason"])


def _decision(journal: JournalReader, scorer: Scorer, stated: Sequence[Limit], round_: int) -> ReleaseDecision:
    estimates = {step.constraint: step.estimate for step in journal.dual_steps() if step.round == round_}
    missing = [limit.name for limit in stated if limit.name not in estimates]
    if missing or not stated:
        return ReleaseDecision(False, f"no estimate of this round's {', '.join(missing) or 'cost'}")
    reasons = []
    for limit in stated:
        decision = _asked(estimates[limit.name], limit)
        if not decision.released:
            return decision
        reasons.append(decision.reason)
    before, now = _accuracies(journal, scorer, round_)
    decision = _asked(estimates[stated[0].name], stated[0], accuracy=now, accuracy_before=before)
    if not decision.released:
        return decision
    kept = "" if now is None else f"; held-out reward accuracy {now:.3f}, {before:.3f} before"
    return ReleaseDecision(True, "; ".join(reasons) + kept)


def _asked(estimate: CostEstimate, limit: Limit, **accuracies: float | None) -> ReleaseDecision:
    """The rule for one limit, in words of the limit's unit."""

    def written(cost: float) -> str:
        return limit.quantity.text(limit.cost(cost))

    return release_decision(estimate, limit.cost_limit, written=written, **accuracies)


def _accuracies(journal: JournalReader, scorer: Scorer, round_: int) -> tuple[float | None, float | None]:
    """Held-out reward accuracy of the released round and of this one; None where nothing was released before, the
    reward policy is the same, or the round labelled no pairs."""
    current = Releases(Store(journal.engine, journal.run_id)).now().current
    if current is None:
        return None, None
    versions = journal.versions()
    reference = next((entry.version for entry in versions if entry.stage == "reference"), None)

    def reward_policy(number: int) -> PolicyVersion | None:
        made = [entry.version for entry in versions if entry.stage == "reward" and entry.round <= number]
        return made[-1] if made else None

    old, new = reward_policy(current), reward_policy(round_)
    pairs = [entry.labelled for entry in journal.pairs(round_)]
    pairs = [item for item in pairs if reward_rows(item, round_)]
    if reference is None or old is None or new is None or old.sha256 == new.sha256 or not pairs:
        return None, None
    answers = [answer for item in pairs for answer in (item.pair.first, item.pair.second)]
    base = scorer.log_probs(reference, answers)
    before, now = (accuracy(scorer.log_probs(policy, answers) - base, pairs, round_) for policy in (old, new))
    return before, now


def accuracy(scores: Array, pairs: Sequence[LabelledPair], round_: int = 0) -> float:
    """Share of pairs whose more helpful answer has the higher score; a tie counts half. [2n] -> in [0, 1]"""
    first, second = scores[0::2], scores[1::2]
    chosen_first = np.array([reward_rows(item, round_)[0].chosen == item.pair.first.token_ids for item in pairs])
    return float(np.mean(agreement(np.where(chosen_first, first - second, second - first))))
