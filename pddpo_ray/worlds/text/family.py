"""Drawing a text world's sentences from a seed: words, order and size of the slots, and which phrases are rare.

Seeds 1000 to 1049 are held out: nothing is ever tuned on them, and no shipped recipe or suite names them otherwise
than as held out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from pddpo_ray.config import DrawnFamilyConfig, TextWorldConfig
from pddpo_ray.errors import UserError
from pddpo_ray.worlds.text.grammar import Grammar, Phrase, Slot
from pddpo_ray.worlds.text.phrase_pools import (
    CAREFUL,
    CARELESS,
    CLOSING,
    MIDDLE,
    OPENING,
    QUESTIONS,
    SITUATIONS,
    TOPICS,
    WAYS,
)

HELD_OUT_SEEDS = range(1000, 1050)
"""World seeds for final measurements only."""

WAY, CARE = 1, 2
"""Slots of a world whose words mean something: a way for each topic, then careless and careful phrases."""
CARES = 4

LARGEST_SLOT = 10
MOST_SLOTS = 2 + len(MIDDLE)


@dataclass(frozen=True)
class RarePhrase:
    """Where a rare phrase stands and what it is worth: good, bad or neutral."""

    slot: int
    value: int
    worth: str


def grammar_of(settings: TextWorldConfig) -> Grammar:
    """The sentences of a recipe's world. Raises UserError where `answers` is no product of the slots' sizes."""
    return drawn_grammar(settings.family, settings.seed)


def drawn_grammar(family: DrawnFamilyConfig, seed: int) -> Grammar:
    """Topics, situations, question, slots and rare phrases of a seed."""
    rng = np.random.default_rng([seed, 31])
    sizes = slot_sizes(family, rng)
    middle = list(rng.permutation(list(MIDDLE))[: len(sizes) - 2])
    pools = {"opening": OPENING, **MIDDLE, "closing": CLOSING}
    rare = {(phrase.slot, phrase.value) for phrase in rare_phrases(family, seed)}
    slots = []
    for index, (name, size) in enumerate(zip(("opening", *middle, "closing"), sizes, strict=True)):
        words = _random_entries(rng, pools[name], size)
        phrases = tuple(Phrase(text, (index, value) in rare) for value, text in enumerate(words))
        slots.append(Slot(str(name), phrases))
    topics = _random_entries(rng, TOPICS, family.topics)
    situations = _random_entries(rng, SITUATIONS, family.situations)
    if family.meaning:
        slots[WAY] = Slot("way", tuple(Phrase(WAYS[topic]) for topic in topics))
        care = (*_random_entries(rng, CARELESS, CARES // 2), *_random_entries(rng, CAREFUL, CARES // 2))
        slots[CARE] = Slot("care", tuple(map(Phrase, care)))
    return Grammar(topics=topics, situations=situations, slots=tuple(slots), question=str(rng.choice(QUESTIONS)))


def reference_spread(seed: int) -> float:
    """How unevenly a seed's reference prefers its common phrases: from half of the usual to a fifth more."""
    return float(np.random.default_rng([seed, 33]).uniform(0.5, 1.2))


def slot_sizes(family: DrawnFamilyConfig, rng: np.random.Generator) -> tuple[int, ...]:
    """An ordered factorisation of `answers`, one of those with the wanted number of slots. Raises UserError."""
    fixed_sizes = (family.topics, CARES) if family.meaning else ()
    drawn, left = divmod(family.answers, math.prod(fixed_sizes))
    possible = [
        sizes
        for sizes in (factorisations(drawn) if left == 0 else ())
        if (number := len(sizes) + len(fixed_sizes)) >= 3
        and len(sizes) >= 2
        and (number == family.slots if family.slots is not None else number <= 6)
        and sum(max(size - 2, 0) for size in sizes) >= family.good + family.bad + family.neutral
    ]
    if not possible:
        within = f"{family.slots} slots" if family.slots is not None else "3 to 6 slots"
        raise UserError(
            f"world.family.answers={family.answers} is no product of {within} of 2 to {LARGEST_SLOT} phrases with room "
            "for the rare ones; try 216, 1000, 10000 or 100000"
        )
    first, *other_sizes = (int(size) for size in rng.permutation(possible[rng.integers(len(possible))]))
    return (first, *fixed_sizes, *other_sizes)


@cache
def factorisations(number: int, largest: int = LARGEST_SLOT) -> tuple[tuple[int, ...], ...]:
    """All ways to write a number as a product of descending factors from 2 to `largest`, of up to 8 factors."""
    if number == 1:
        return ((),)
    splits = []
    for factor in range(min(largest, number), 1, -1):
        if number % factor == 0:
            splits += [(factor, *factors) for factors in factorisations(number // factor, factor)]
    return tuple(sizes for sizes in splits if len(sizes) <= MOST_SLOTS)


def rare_phrases(family: DrawnFamilyConfig, seed: int) -> tuple[RarePhrase, ...]:
    """The rare phrases of a seed; every slot keeps at least two common ones."""
    sizes = slot_sizes(family, np.random.default_rng([seed, 31]))
    rng = np.random.default_rng([seed, 32])
    spots = [
        (slot, int(value))
        for slot, size in enumerate(sizes)
        if not (family.meaning and slot in (WAY, CARE))
        for value in rng.choice(size, size=max(size - 2, 0), replace=False)
    ]
    worths = ["good"] * family.good + ["bad"] * family.bad + ["neutral"] * family.neutral
    indices = rng.permutation(len(spots))[: len(worths)]
    return tuple(RarePhrase(spots[spot][0], spots[spot][1], worth) for spot, worth in zip(indices, worths, strict=True))


def _random_entries(rng: np.random.Generator, pool: Sequence[str], count: int) -> tuple[str, ...]:
    """`count` different entries in random order."""
    return tuple(itertools.islice((pool[index] for index in rng.permutation(len(pool))), count))
