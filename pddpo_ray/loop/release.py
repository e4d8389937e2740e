"""The release rule at the end of a round (design: c~ + 1.64 se <= d, reward accuracy kept), journalled once.

Accuracy is measured on the pairs that were labelled in the round itself: neither the round's reward policy nor the one
of the released round has been trained on them, and both are asked about the same pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from pddpo_ray.contracts import Array
from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.journal.transactions import Store
from pddpo_ray.loop.preferences import reward_rows
from pddpo_ray.records import LabelledPair, PolicyVersion, Response
from pddpo_ray.serving.releases import REFUSE, RELEASE, RULE, Releases
from pddpo_ray.theory.agreement import agreement
from pddpo_ray.theory.output import ReleaseDecision, release_decision

PHASE = "release"


class Scorer(Protocol):
    def log_probs(self, policy: PolicyVersion, responses: Sequence[Response]) -> Array: ...


def decide(journal: Journal, scorer: Scorer, thresholds: Mapping[str, float], round_: int) -> ReleaseDecision:
    """Whether this round's policy may be released; the first run of it is the one that counts. A closing of rounds."""

    def apply() -> dict[str, object]:
        decision = _decision(journal, scorer, thresholds, round_)
        journal.add_release(RELEASE if decision.released else REFUSE, round_, RULE, decision.reason)
        return {"released": decision.released, "reason": decision.reason}

    payload = journal.once(PHASE, apply)
    return ReleaseDecision(payload["released"], payload["reason"])


def _decision(journal: JournalReader, scorer: Scorer, thresholds: Mapping[str, float], round_: int) -> ReleaseDecision:
    estimates = {step.constraint: step.estimate for step in journal.dual_steps() if step.round == round_}
    missing = [name for name in thresholds if name not in estimates]
    if missing or not thresholds:
        return ReleaseDecision(False, f"no estimate of this round's {', '.join(missing) or 'cost'}")
    reasons = []
    for name, threshold in thresholds.items():
        decision = release_decision(estimates[name], threshold)
        if not decision.released:
            return decision
        reasons.append(decision.reason)
    before, now = _accuracies(journal, scorer, round_)
    name, threshold = next(iter(thresholds.items()))
    decision = release_decision(estimates[name], threshold, accuracy=now, accuracy_before=before)
    if not decision.released:
        return decision
    kept = "" if now is None else f"; held-out reward accuracy {now:.3f}, {before:.3f} before"
    return ReleaseDecision(True, "; ".join(reasons) + kept)


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
