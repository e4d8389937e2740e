"""Limits inside OpenRLHF: the reward function of a file, of a helpfulness of yours and all limits.

    # reward.py, named by --reward.remote_url reward.py (--remote_rm_url in older versions)
    from actors.limit_controller import SharedLimits
    from pddpo_ray.integrations.openrlhf import limited

    def helpful(prompts, answers, labels): ...

    reward_func = limited(helpful, SharedLimits("limits.yaml", journal="out/limits.jsonl", answers_a_step=1024))

OpenRLHF calls it in its vLLM actors, for one answer at a time, with prompt and answer in one text that has the model's
special tokens. What it raises there is a line of OpenRLHF's log, and the answer has no reward; what can be wrong
beforehand (the limits, the journal) is therefore raised when the file is loaded, which ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pddpo_ray.errors import UserError
from pddpo_ray.integrations.answer_scores import Scorer, asked_for

ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "<eos>", "</s>")
TAIL = 64
"""Characters of a prompt that was cut on the left for its length; OpenRLHF keeps its end."""


def limited(
    helpful: Callable[[Sequence[str], Sequence[str], Sequence[Any]], Sequence[Any]],
    limits: Scorer,
    *,
    row: Callable[[Any], Mapping[str, Any]] = lambda label: {},
    ends: Sequence[str] = ENDS,
) -> Callable[..., dict[str, Any]]:
    """OpenRLHF's `reward_func`. `helpful` gives a number for each of its prompts, answers and labels; `row` says what
    a label tells about an answer (`set`, `reference`, `split`); `ends` are the tokens that an answer's text loses.

    It gives `rewards`, the scores under the limits; `scores`, what `helpful` gave, for OpenRLHF's dynamic filtering;
    and in `extra_logs` `limit/NAME` and `multiplier/NAME`. What could not be measured is NaN. All are [n].
    """

    def reward_func(
        queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **more: Any
    ) -> dict[str, Any]:
        answers = [answer_of(query, prompt, ends) for query, prompt in zip(queries, prompts, strict=True)]
        rewards = list(helpful(prompts, answers, labels))
        asked = asked_for(prompts, answers, rewards, [row(label) for label in labels])
        scored = limits.score(asked)
        logs = {f"limit/{name}": _tensor(own) for name, own in scored.values.items()}
        logs |= {f"multiplier/{name}": _tensor([one] * len(answers)) for name, one in scored.multipliers.items()}
        return {"rewards": _tensor(scored.scores), "scores": _tensor(asked.rewards), "extra_logs": logs}

    return reward_func


def answer_of(query: str, prompt: str, ends: Sequence[str] = ENDS) -> str:
    """What follows the prompt in a text that holds both, without the tokens that end it.

    Raises UserError where the prompt is not in the text.
    """
    tail = next((part for part in (prompt, prompt[-TAIL:]) if part in query), None)
    if tail is None:
        raise UserError(f"the prompt that ends in {prompt[-TAIL:]!r} is not in the text that OpenRLHF gave with it")
    answer = query.partition(tail)[2]
    while end := next((end for end in ends if answer.endswith(end)), None):
        answer = answer.removesuffix(end)
    return answer


def _tensor(values: Sequence[float | None]) -> torch.Tensor:
    """[n] -> [n]"""
    return torch.tensor([float("nan") if value is None else value for value in values])
