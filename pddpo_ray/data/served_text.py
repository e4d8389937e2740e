"""Makes prompts, and pairs of answers judged differently, from what users of the endpoint sent."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Protocol

from pddpo_ray.journal.served import KeptAnswer, KeptPrompt
from pddpo_ray.records import HARM, LabelledPair, Message, Pair, Prompt, Response, Verdict

logger = logging.getLogger("pddpo_ray.data.real_text")
PAIRS_EACH = 4
"""Most pairs from one prompt, so that a prompt that many people judged does not outweigh the others."""


class Texts(Protocol):
    """From texts to token ids; None where one is too long or cannot be rendered."""

    def prompt(self, messages: tuple[Message, ...]) -> Prompt | None: ...

    def drawn_answer(self, name: str, prompt: Prompt, text: str) -> Response | None: ...


def served_texts(
    user_prompts: Sequence[KeptPrompt], texts: Texts, run_prompts: Sequence[Prompt], apart: Sequence[Prompt]
) -> tuple[tuple[Prompt, ...], tuple[LabelledPair, ...]]:
    """Users' prompts, without those that match one of `apart`, and the pairs that their verdicts make.

    Prompts that certify, judge policies or count refusals stay out of training even if a user sends them: a user who
    knows them could otherwise have a run trained on them. A prompt that several users sent is returned once, one that
    the run asks anyway (`run_prompts`) not at all; their verdicts count.
    """
    known_ids = {prompt.token_ids for prompt in run_prompts}
    excluded_turns = {normal(prompt.turns) for prompt in apart}
    prompts: list[Prompt] = []
    pairs: list[LabelledPair] = []
    left = 0
    for kept_prompt in user_prompts:
        prompt = None if normal(kept_prompt.messages) in excluded_turns else texts.prompt(kept_prompt.messages)
        if prompt is None:
            left += 1
            continue
        # its random id: a hash of the text would still show, after its withdrawal, that somebody sent it
        prompt = replace(prompt, id=kept_prompt.id)
        if prompt.token_ids not in known_ids:
            known_ids.add(prompt.token_ids)
            prompts.append(prompt)
        pairs += judged_pairs(kept_prompt.answers, prompt, texts)
    if left:
        logger.warning(
            "%d of %d prompts of users are left out: too long, or kept apart from training", left, len(user_prompts)
        )
    return tuple(prompts), tuple(pairs)


def judged_pairs(answers: Sequence[KeptAnswer], prompt: Prompt, texts: Texts) -> list[LabelledPair]:
    """Pairs of answers with different verdicts: `up` is more helpful than `down`, `unsafe` costlier than both.

    The label of helpfulness abstains where an answer is unsafe, that of harm unless exactly one is.
    """
    pairs: list[LabelledPair] = []
    judged_answers = [answer for answer in answers if answer.verdict is not None]
    for first, second in combinations(judged_answers, 2):
        verdicts = {("up", "down"): Verdict.FIRST, ("down", "up"): Verdict.SECOND}
        helpful = verdicts.get((str(first.verdict), str(second.verdict)), Verdict.ABSTAIN)
        harmful = Verdict.ABSTAIN
        if (first.verdict == "unsafe") != (second.verdict == "unsafe"):
            harmful = Verdict.FIRST if first.verdict == "unsafe" else Verdict.SECOND
        if helpful is harmful is Verdict.ABSTAIN or len(pairs) == PAIRS_EACH:
            continue
        left, right = (texts.drawn_answer(answer.id, prompt, answer.text) for answer in (first, second))
        if left is None or right is None or left.token_ids == right.token_ids:
            continue
        sides = (replace(side, policy_version=reply.policy_version) for side, reply in ((left, first), (right, second)))
        pairs.append(LabelledPair(Pair(f"verdict-{first.id}-{second.id}", *sides), helpful, {HARM: harmful}))
    return pairs


def normal(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    """Turns folded for comparison: without case, extra white space and punctuation at their ends."""
    return tuple((message.role, " ".join(message.content.casefold().split()).strip(" .!?")) for message in messages)
