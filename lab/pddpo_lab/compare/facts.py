"""What each compared method assumes, promises, trains and keeps in memory (docs/methods.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """`trained` counts models over K rounds, `resident` those in memory while one of them trains."""

    name: str
    learns_from: str
    multiplier: str
    guarantee: str
    trained: str
    resident: str


FACTS: dict[str, Facts] = {
    "o-pd-dpo": Facts(
        "O-PD-DPO",
        "Dʳ and Dᶜ, growing; labels of fresh answers",
        "learned from labels",
        "under the theorem's conditions O(1/√K) without coverage of the offline pairs; as shipped the certificate",
        "2K",
        "1",
    ),
    "o-pd-dpo-paper": Facts(
        "O-PD-DPO, bonus in the loss",
        "as O-PD-DPO",
        "learned from labels, for the optimistic policy",
        "as O-PD-DPO, for the optimistic policies",
        "2K",
        "1",
    ),
    "pd-dpo": Facts(
        "PD-DPO",
        "Dʳ and Dᶜ; labels of fresh answers",
        "learned from labels",
        "under projected steps and exact fits O(1/√K), up to an error that only coverage of the offline pairs removes",
        "1 + K",
        "1",
    ),
    "pd-dpo-fixed": Facts(
        "PD-DPO, fixed λ", "Dʳ and Dᶜ", "given", "best Lagrangian at that λ; the limit only if λ is right", "2", "1"
    ),
    "pd-dpo-adalag": Facts(
        "PD-DPO-adaLag",
        "Dʳ and Dᶜ; labels of fresh answers",
        "learned, log rule on a window",
        "none",
        "2, then single steps",
        "1",
    ),
    "dpo-harmless": Facts("DPO-Harmless", "Dᶜ", "–", "least cost at that β, whatever it does to reward", "1", "1"),
    "dpo-helpful": Facts("DPO-Helpful", "Dʳ", "–", "most reward at that β, whatever it costs", "1", "1"),
    "safe-dpo": Facts(
        "SafeDPO", "Dʳ, one safety bit per answer", "–", "“never unsafe” with infinite data; not this limit", "1", "1"
    ),
    "sacpo": Facts("SACPO", "Dʳ and Dᶜ", "from a grid", "as PD-DPO with fixed λ", "2", "1"),
    "p-sacpo": Facts(
        "P-SACPO", "Dʳ and Dᶜ", "from a grid, times the share", "none for weights, exact for logits", "2", "1"
    ),
    "mocan": Facts(
        "MoCAN",
        "pseudo-labels of reward and cost models",
        "explicit dual, once, on answers of the reference",
        "optimum if both models are right and answers are many",
        "1 and two linear models",
        "1",
    ),
    "pecan": Facts(
        "PeCAN",
        "pseudo-labels of two policies",
        "explicit dual, once",
        "as MoCAN, with policies for models",
        "3",
        "1",
    ),
    "c-dpo": Facts(
        "C-DPO",
        "pseudo-labels of reward and cost models",
        "learned from the cost model on fresh answers",
        "none that survives a wrong cost model",
        "K and two linear models",
        "1",
    ),
    "caid": Facts(
        "CAID",
        "pseudo-labels of models or policies",
        "explicit dual, then steps on fresh answers",
        "dual steps at the policy as it is, not as it should be",
        "K and two models",
        "1",
    ),
    "safe-rlhf": Facts(
        "Safe RLHF",
        "rewards and costs of models on fresh answers",
        "learned, log rule on a window",
        "none: a policy gradient on a moving objective",
        "5: reward, cost, policy, two critics",
        "up to 6",
    ),
    "c-grpo": Facts(
        "C-GRPO",
        "rewards and costs of models on groups of fresh answers",
        "learned, log rule on a window",
        "none: a policy gradient on a moving objective",
        "3: reward, cost, policy",
        "1",
    ),
}
