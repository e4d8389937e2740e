"""The sentences of a text world: prompts ask how to do a job, answers combine the phrases of some slots.

Every phrase is a fixed list of words and one word is one token, so an answer has exactly one tokenisation, and a prompt
has few enough answers to enumerate. Within a slot no phrase is the beginning of another one, which makes the answers of
a prompt the leaves of a tree of choices. A `Grammar` holds all of this; nothing about sentences is known elsewhere.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

PAD, BOS, EOS, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"


@dataclass(frozen=True)
class Phrase:
    """One value of a slot. `rare` values have about one per cent under the reference and no labelled pair."""

    text: str
    rare: bool = False


@dataclass(frozen=True)
class Slot:
    """A place in the answer and the phrases that can stand there."""

    name: str
    phrases: tuple[Phrase, ...]

    @cached_property
    def rare(self) -> NDArray[np.bool_]:
        """[V] which phrases are rare"""
        return np.array([phrase.rare for phrase in self.phrases])


@dataclass(frozen=True)
class Grammar:
    """Vocabulary, prompts and answers as token ids. Word ids follow the four special tokens in order of appearance."""

    topics: tuple[str, ...]
    situations: tuple[str, ...]
    slots: tuple[Slot, ...]
    """In the order in which they are written."""
    question: str = "how do i {topic} {situation} ?"

    @cached_property
    def prompt_texts(self) -> tuple[str, ...]:
        """[X] prompts, situation fastest."""
        return tuple(
            self.question.format(topic=topic, situation=situation)
            for topic in self.topics
            for situation in self.situations
        )

    @cached_property
    def prompt_features(self) -> NDArray[np.int64]:
        """[X, 2] index of the topic and of the situation of every prompt."""
        return np.array(list(itertools.product(range(len(self.topics)), range(len(self.situations)))))

    @cached_property
    def answer_features(self) -> NDArray[np.int64]:
        """[Y, S] index of the phrase in each slot of every answer, last slot fastest."""
        sizes = tuple(len(slot.phrases) for slot in self.slots)
        return np.stack(np.unravel_index(np.arange(int(np.prod(sizes))), sizes), axis=1).astype(np.int64)

    @cached_property
    def answer_texts(self) -> tuple[str, ...]:
        """[Y] answers; the same for every prompt (what differs is their worth)."""
        phrases = ([phrase.text for phrase in slot.phrases] for slot in self.slots)
        return tuple(map(" ".join, itertools.product(*phrases)))

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """word -> id"""
        words = itertools.chain([PAD, BOS, EOS, UNKNOWN], *(text.split() for text in self.prompt_texts))
        every = itertools.chain(words, *(phrase.text.split() for slot in self.slots for phrase in slot.phrases))
        return {word: index for index, word in enumerate(dict.fromkeys(every))}

    @property
    def eos(self) -> int:
        return self.vocabulary[EOS]

    def encode(self, text: str) -> tuple[int, ...]:
        """Words to ids; an unknown word is refused, since text is never re-tokenised in a run."""
        return tuple(self.vocabulary[word] for word in text.split())

    @cached_property
    def prompt_ids(self) -> tuple[tuple[int, ...], ...]:
        """[X] beginning-of-sequence and the words of the prompt."""
        return tuple((self.vocabulary[BOS], *self.encode(text)) for text in self.prompt_texts)

    @cached_property
    def phrase_ids(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """[S, V] the words of every phrase; those of the last slot end with end-of-sequence."""
        last = len(self.slots) - 1
        return tuple(
            tuple((*self.encode(phrase.text), *((self.eos,) if index == last else ())) for phrase in slot.phrases)
            for index, slot in enumerate(self.slots)
        )

    @cached_property
    def answer_ids(self) -> tuple[tuple[int, ...], ...]:
        """[Y] the words of the answer and end-of-sequence."""
        return tuple(tuple(itertools.chain(*phrases)) for phrases in itertools.product(*self.phrase_ids))

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest prompt and answer together, without enumerating the answers."""
        return max(map(len, self.prompt_ids)) + sum(max(map(len, phrases)) for phrases in self.phrase_ids)

    @cached_property
    def answer_index(self) -> dict[tuple[int, ...], int]:
        """token ids -> answer; anything else is off the grammar."""
        return {ids: index for index, ids in enumerate(self.answer_ids)}

    @cached_property
    def covered(self) -> NDArray[np.bool_]:
        """[Y] answers without a rare value: the only ones that the baseline writes and the offline pairs mention."""
        return ~np.any([slot.rare[self.answer_features[:, s]] for s, slot in enumerate(self.slots)], axis=0)
