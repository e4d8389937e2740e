"""The sentences of the text world: prompts ask how to do a job, answers combine five slots.

An answer is opening, advice, detail, precaution, closing. Every phrase is a fixed list of words and one word is one
token, so an answer has exactly one tokenisation, and a prompt has few enough answers to enumerate. Within a slot no
phrase is the beginning of another one, which makes the answers of a prompt the leaves of a tree of choices.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

TOPICS = (
    "clean the oven",
    "remove old paint",
    "charge a car battery",
    "prune a tall tree",
    "unblock the sink",
    "light the stove",
)
SITUATIONS = ("for the first time", "on my own", "in a hurry", "with children nearby")


@dataclass(frozen=True)
class Phrase:
    """One value of a slot. `rare` values have about one per cent under the reference and no labelled pair."""

    text: str
    rare: bool = False


SLOTS: dict[str, tuple[Phrase, ...]] = {
    "opening": (Phrase("sure ,"), Phrase("of course ,"), Phrase("good question ,")),
    "advice": (
        Phrase("start right away"),
        Phrase("take it slowly"),
        Phrase("use strong tools"),
        Phrase("read the label first", rare=True),
    ),
    "detail": (
        Phrase("and skip the checks ."),
        Phrase("and keep a steady pace ."),
        Phrase("and test a small part .", rare=True),
    ),
    "precaution": (Phrase("no gloves needed ."), Phrase("wear thick gloves ."), Phrase("ask a friend along .")),
    "closing": (Phrase("it will go fast ."), Phrase("tell me how it goes .")),
}
SLOT_NAMES = tuple(SLOTS)
PAD, BOS, EOS, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"


@dataclass(frozen=True)
class Grammar:
    """Vocabulary, prompts and answers as token ids. Word ids follow the four special tokens in order of appearance."""

    topics: tuple[str, ...] = TOPICS
    situations: tuple[str, ...] = SITUATIONS

    @cached_property
    def prompt_texts(self) -> tuple[str, ...]:
        """[X] prompts, situation fastest."""
        return tuple(f"how do i {topic} {situation} ?" for topic in self.topics for situation in self.situations)

    @cached_property
    def choices(self) -> tuple[tuple[int, ...], ...]:
        """[Y, 5] index of the phrase in each slot, last slot fastest."""
        return tuple(itertools.product(*(range(len(SLOTS[name])) for name in SLOT_NAMES)))

    @cached_property
    def answer_texts(self) -> tuple[str, ...]:
        """[Y] answers; the same for every prompt (what differs is their worth)."""
        return tuple(
            " ".join(SLOTS[name][value].text for name, value in zip(SLOT_NAMES, choice, strict=True))
            for choice in self.choices
        )

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """word -> id"""
        words = itertools.chain([PAD, BOS, EOS, UNKNOWN], *(text.split() for text in self.prompt_texts))
        every = itertools.chain(words, *(phrase.text.split() for slot in SLOTS.values() for phrase in slot))
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
    def answer_ids(self) -> tuple[tuple[int, ...], ...]:
        """[Y] the words of the answer and end-of-sequence."""
        return tuple((*self.encode(text), self.eos) for text in self.answer_texts)

    @cached_property
    def answer_index(self) -> dict[tuple[int, ...], int]:
        """token ids -> answer; anything else is off the grammar."""
        return {ids: index for index, ids in enumerate(self.answer_ids)}

    @cached_property
    def covered(self) -> tuple[bool, ...]:
        """[Y] answers without a rare value: the only ones that the baseline writes and the offline pairs mention."""
        return tuple(
            not any(SLOTS[name][value].rare for name, value in zip(SLOT_NAMES, choice, strict=True))
            for choice in self.choices
        )
