"""SafeDPO (docs/methods.md): helpfulness pairs turned by safety bits, and a margin of safe over unsafe answers.

    better safe: kept     better unsafe, worse safe: swapped     both unsafe: dropped
    loss = softplus(-(beta (h(chosen) - h(rejected)) - D [rejected unsafe]))      h = log policy/reference

It solves "never unsafe", not a limit on the expected cost, so no multiplier appears and the limit is not looked at.

Departures: the reference stands for the original's fine-tuning on the pairs, as in the paper's comparison; bits are one
label per answer asked through Feedback; a table's scores stay in their box, which a margin of 10 always drives to its
walls (the original's policy has no such bound).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pddpo_lab.methods.settings import SafeDpoSettings
from pddpo_lab.methods.stages import unsafe_bits
from pddpo_ray.algorithms.stages import Parts, Sizes, observe, single_objective
from pddpo_ray.records import LabelledPair, PairRow, PolicyVersion, UniformMixture, Verdict


def run(parts: Parts, sizes: Sizes, reference: PolicyVersion) -> UniformMixture:
    """Bits for the offline answers, then one fit on the transformed pairs."""
    parts.prepare()
    unsafe = unsafe_bits(parts)
    rows, margins = transformed(parts.preferences.labelled, unsafe, sizes.own(SafeDpoSettings).margin)
    for _ in parts.journal.rounds(sizes.rounds):
        policy = parts.trainer.fit(single_objective(reference, sizes.beta, margins, sizes.reward_max), rows)
        observe(parts, policy, sizes, multiplier=0.0)
    return UniformMixture(tuple(parts.journal.policies))


def transformed(
    labelled: Sequence[LabelledPair], unsafe: Mapping[str, bool], margin: float
) -> tuple[list[PairRow], list[float]]:
    """Rows of the transformed pairs and the margin of each: -D where the rejected answer is unsafe, else 0."""
    rows, margins = [], []
    for item in labelled:
        if item.helpful not in (Verdict.FIRST, Verdict.SECOND):
            continue
        chosen, rejected = item.pair.first, item.pair.second
        if item.helpful is Verdict.SECOND:
            chosen, rejected = rejected, chosen
        if unsafe[chosen.id] and unsafe[rejected.id]:
            continue
        if unsafe[chosen.id]:
            chosen, rejected = rejected, chosen
        rows.append(PairRow(item.pair.id, item.pair.prompt.token_ids, chosen.token_ids, rejected.token_ids))
        margins.append(-margin if unsafe[rejected.id] else 0.0)
    return rows, margins
