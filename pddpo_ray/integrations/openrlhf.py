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

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pddpo_ray.errors import UserError
from pddpo_ray.integrations.answer_scores import Scorer, asked_for, demand_plain

MARK = (
    r"<\|[^|<>\s]{1,40}\|>|<\uff5c[^<>\s]{1,40}\uff5c>|<(?:pad|eos|end_of_turn|end_of_utterance|turn\|)>|</s>"
    r"|\[(?:PAD|EOS)\]"
)
"""What tokens that end an answer look like, where nobody names them."""
TAIL = 64
"""Characters of a prompt that was cut on the left for its length; OpenRLHF keeps its end."""


def limited(
    helpful: Callable[[Sequence[str], Sequence[str], Sequence[Any]], Any],
    limits: Scorer,
    *,
    row: Callable[[Any], Mapping[str, Any]] = lambda label: {},
    ends: Sequence[str] | None = None,
) -> Callable[..., dict[str, Any]]:
    """OpenRLHF's `reward_func`. `helpful` gives a number for each of its prompts, answers and labels, or OpenRLHF's own
    dictionary with `rewards`, and perhaps `scores` and `extra_logs`; `row` says what a label tells about an answer
    (`set`, `reference`, `split`). `ends` are the tokens that an answer's text loses, `ends_of(MODEL)` those of a model;
    None: whatever looks like one.

    It gives `rewards`, the scores under the limits; `scores`, what `helpful` gave, for OpenRLHF's dynamic filtering;
    and in `extra_logs` `limit/NAME`, `missing/NAME` and `multiplier/NAME`. What has no number is NaN. All are [n].
    """

    demand_plain(helpful)

    def reward_func(
        queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **more: Any
    ) -> dict[str, Any]:
        answers = [answer_of(query, prompt, ends) for query, prompt in zip(queries, prompts, strict=True)]
        output = helpful(prompts, answers, labels)
        result = output if isinstance(output, Mapping) else {"rewards": output}
        if "rewards" not in result:
            raise UserError(f"the helpful function gave {sorted(result)} without `rewards`")
        request = asked_for(prompts, answers, _flat_list(result["rewards"]), [row(label) for label in labels])
        scores = _flat_list(result["scores"]) if result.get("scores") is not None else request.rewards
        scored = limits.score(request)
        logs = dict(result.get("extra_logs") or {}) | {name: _tensor(column) for name, column in scored.figures.items()}
        return {"rewards": _tensor(scored.scores), "scores": _tensor(scores), "extra_logs": logs}

    return reward_func


def ends_of(model: str | Path) -> tuple[str, ...]:
    """The special tokens of a model's tokenizer, by its folder or name."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return tuple(dict.fromkeys([*tokenizer.all_special_tokens, *added]))


def answer_of(query: str, prompt: str, ends: Sequence[str] | None = None) -> str:
    """What follows the prompt in a text that holds both, without the tokens that end it and the white space after them.

    Raises UserError where the prompt is not in the text.
    """
    tail = next((part for part in (prompt, prompt[-TAIL:]) if part in query), None)
    if tail is None:
        raise UserError(f"the prompt that ends in {prompt[-TAIL:]!r} is not in the text that OpenRLHF gave with it")
    mark = MARK if ends is None else "|".join(re.escape(end) for end in ends if end)
    start = query.index(tail) + len(tail)
    if tail != prompt:  # the text begins with all that is left of a prompt, which may hold its own end more than once
        ends_of_left = (end for end in range(start, len(query) + 1) if query.endswith(tail, 0, end))
        start = max((end for end in ends_of_left if prompt.endswith(query[:end])), default=start)
    answer = query[start:]
    return re.sub(rf"(?:(?:{mark})\s*)+\Z", "", answer) if mark else answer


def _flat_list(values: Any) -> list[Any]:
    """A list, or a tensor or an array of any shape. -> [n]"""
    return values.reshape(-1).tolist() if hasattr(values, "reshape") else list(values)


def _tensor(values: Sequence[float | None]) -> torch.Tensor:
    """[n] -> [n]"""
    return torch.tensor([float("nan") if value is None else value for value in values])
