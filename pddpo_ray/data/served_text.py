"""What users of the endpoint gave, as a run needs it: prompts, and pairs of answers that they judged differently."""

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
"""Pairs of one prompt at most, so that one that many people judged does not outweigh the others."""


class Texts(Protocol):
    """From texts to token ids; None where one is too long or cannot be rendered."""

    def prompt(self, messages: tuple[Message, ...]) -> Prompt | None: ...

    def drawn_answer(self, name: str, prompt: Prompt, text: str) -> Response | None: ...


def served_texts(
    kept: Sequence[KeptPrompt], texts: Texts, own: Sequence[Prompt], apart: Sequence[Prompt]
) -> tuple[tuple[Prompt, ...], tuple[LabelledPair, ...]]:
    """Users' prompts but for those that say the same as one of `apart`, and the pairs that their verdicts make.

    What certificates draw, what judges the policies and what counts refusals stays apart from training, also if a user
    sends them: a user who knows those prompts could otherwise have a run trained on them. A prompt that the run asks
    anyway, or that another user sent too, is there once.
    """
    known = {prompt.token_ids for prompt in own}
    forbidden = {normal(prompt.turns) for prompt in apart}
    prompts: list[Prompt] = []
    pairs: list[LabelledPair] = []
    left = 0
    for one in kept:
        prompt = None if normal(one.messages) in forbidden else texts.prompt(one.messages)
        if prompt is None:
            left += 1
            continue
        # its random name: the hash of a text would still say, after it was withdrawn, that somebody sent it
        prompt = replace(prompt, id=one.id)
        if prompt.token_ids not in known:
            known.add(prompt.token_ids)
            prompts.append(prompt)
        pairs += judged_pairs(one.answers, prompt, texts)
    if left:
        logger.warning("%d of %d prompts of users are left out: too long, or kept apart from training", left, len(kept))
    return tuple(prompts), tuple(pairs)


def judged_pairs(answers: Sequence[KeptAnswer], prompt: Prompt, texts: Texts) -> list[LabelledPair]:
    """Answers of different verdicts in pairs: `up` is more helpful than `down`, `unsafe` costlier than both.

    Of an unsafe answer nobody said whether it helps, and of two that no one calls unsafe none is costlier.
    """
    pairs: list[LabelledPair] = []
    judged = [answer for answer in answers if answer.verdict is not None]
    for first, second in combinations(judged, 2):
        helpful = {("up", "down"): Verdict.FIRST, ("down", "up"): Verdict.SECOND}
        said = helpful.get((str(first.verdict), str(second.verdict)), Verdict.ABSTAIN)
        harmful = Verdict.ABSTAIN
        if (first.verdict == "unsafe") != (second.verdict == "unsafe"):
            harmful = Verdict.FIRST if first.verdict == "unsafe" else Verdict.SECOND
        if said is harmful is Verdict.ABSTAIN or len(pairs) == PAIRS_EACH:
            continue
        left, right = (texts.drawn_answer(one.id, prompt, one.text) for one in (first, second))
        if left is None or right is None or left.token_ids == right.token_ids:
            continue
        written = (replace(side, policy_version=one.policy_version) for side, one in ((left, first), (right, second)))
        pairs.append(LabelledPair(Pair(f"verdict-{first.id}-{second.id}", *written), said, {HARM: harmful}))
    return pairs


def normal(messages: Sequence[Message]) -> tuple[tuple[str, str], ...]:
    """Turns without what does not change their words: case, white space, marks at the ends."""
    return tuple((one.role, " ".join(one.content.casefold().split()).strip(" .!?")) for one in messages)
