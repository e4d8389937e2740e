"""How much a run for a wish does: tokens of its texts, and on CPUs the prompts and pairs that moved a real model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pddpo_ray.backends.machine import Machine
from pddpo_ray.data.lengths import Lengths
from pddpo_ray.limits.wishes import Wish

EACH = 4
"""The model's own answers to each prompt."""
MOVED, MOVED_PAIRS = 160, 64
"""Prompts and pairs of the run that moved SmolLM2's length; four own answers to each prompt taught the limit
(docs/real-model.md)."""
COUNTED = ("words", "tokens")
"""Rules whose first multiplier follows from the spread of the model's own answers."""
ENDED = 0.97
"""Share of the first answers that end by themselves: if 97 in 100 of 128 do, most likely 95 in 100 of all do."""


@dataclass(frozen=True)
class Inputs:
    """A wish, its files, its model and the machine."""

    model: str
    parameters: int
    context: int | None
    """Positions of the model; None: unknown."""
    pairs: str
    lengths: Lengths
    """Of the pairs."""
    wish: Wish
    machine: Machine
    reward: str
    """Folder of the reward model, where a limit needs one."""
    judge: Mapping[str, str]
    prompts: str | None = None
    """File of the rounds' prompts; None: those of the pairs."""
    asked: Lengths | None = None
    """Of those prompts."""
    drawn: Lengths | None = None
    """Of the model's own answers; None: too slow to ask."""
    certificate_prompts: str | None = None
    certified: int = 0
    """Prompts in that file."""

    @property
    def cores(self) -> int | None:
        """Cores that compute where there is no GPU."""
        return None if self.machine.gpus else self.machine.cpus


@dataclass(frozen=True)
class Room:
    """Tokens that prompts, the policy's answers and the pairs' answers may have."""

    prompt: int
    longest: int
    answer: int


@dataclass(frozen=True)
class Size:
    """How much a run does."""

    room: Room
    rounds: int | None
    """None: as many as the recipe that is extended has."""
    prompts: int
    pairs: int


def longest_answer(inputs: Inputs) -> int:
    """Tokens within which the model's own answers end (the pairs', where it was not sampled), and at least twice what a
    limit on length allows, so that it binds."""
    tokens = max(64, inputs.lengths.answer_at(0.99))
    if inputs.drawn is not None:
        tokens = max(32, inputs.drawn.answer_at(ENDED))
    for entry in inputs.wish.limits.values():
        for side in ("at_most", "at_least"):
            amount = str(entry.get(side, "")).split()
            if "mean" in entry and amount[1:] in (["words"], ["tokens"]):
                each = inputs.lengths.words_per_token if amount[1] == "words" else 1.0
                tokens = max(tokens, math.ceil(2.0 * float(amount[0]) / each) + 1)
    return up(tokens, 16)


def rooms(inputs: Inputs) -> list[Room]:
    """Rooms to try in order: what the files need; where CPUs ask the pairs' prompts, one for the shorter half too."""
    lengths, prompts = inputs.lengths, inputs.asked or inputs.lengths
    if inputs.cores is None:
        return [_room(inputs, max(prompts.prompt_at(0.99), lengths.prompt_at(0.99)))]
    if inputs.asked is None:
        return [_room(inputs, lengths.prompt_at(share)) for share in (0.99, 0.5)]
    # room for the prompts, and for the shortest pairs, until enough of those fit
    shares = [0, *(lengths.prompt_at(share) for share in (0.25, 0.5, 0.75, 0.99))]
    wider = [_room(inputs, max(prompts.prompt_at(0.99), tokens)) for tokens in shares]
    enough = _fewest_pairs(inputs)
    return [next((room for room in wider if fitting(lengths, room) >= enough), wider[-1])]


def _room(inputs: Inputs, prompt: int) -> Room:
    prompt, longest = up(max(32, prompt), 16), longest_answer(inputs)
    if inputs.context is not None and prompt + longest > inputs.context:
        longest = min(longest, inputs.context // 2)
        prompt = min(prompt, inputs.context - longest)
    return Room(prompt, longest, min(longest, up(max(32, inputs.lengths.answer_at(0.99)), 16)))


def fitting(lengths: Lengths, room: Room) -> int:
    """Pairs that are short enough."""
    return round(lengths.rows * (1.0 - lengths.left_out(room.prompt, room.answer)))


def prompts_of(inputs: Inputs) -> int:
    return (inputs.asked or inputs.lengths).prompts


def _fewest_pairs(inputs: Inputs) -> int:
    return min(inputs.lengths.rows, MOVED_PAIRS)


def smallest(inputs: Inputs, room: Room) -> Size:
    """The size that was shown to move a real model, on CPUs: one round where the only limit is on length, since the
    model's own answers give its first multiplier; else as many as the extended recipe has."""
    alone = len(inputs.wish.limits) == 1 and inputs.drawn is not None and any(map(counted, inputs.wish.limits.values()))
    return Size(room, 1 if alone else None, min(prompts_of(inputs), MOVED), _fewest_pairs(inputs))


def counted(limit: Mapping[str, Any]) -> bool:
    """Whether it is a mean of words or tokens, whose multiplier follows from the model's own answers."""
    return isinstance(limit.get("mean"), Mapping) and limit["mean"].get("rule") in COUNTED


def up(number: float, unit: int) -> int:
    return unit * math.ceil(number / unit)
