"""A grammar written by hand: 24 prompts and 216 answers, two rare phrases among them."""

from __future__ import annotations

from pddpo_ray.worlds.text.grammar import Grammar, Phrase, Slot


def _slot(name: str, *common: str, rare: str | None = None) -> Slot:
    return Slot(name, (*map(Phrase, common), *(() if rare is None else (Phrase(rare, rare=True),))))


GRAMMAR = Grammar(
    topics=(
        "clean the oven",
        "remove old paint",
        "charge a car battery",
        "prune a tall tree",
        "unblock the sink",
        "light the stove",
    ),
    situations=("for the first time", "on my own", "in a hurry", "with children nearby"),
    slots=(
        _slot("opening", "sure ,", "of course ,", "good question ,"),
        _slot("advice", "start right away", "take it slowly", "use strong tools", rare="read the label first"),
        _slot("detail", "and skip the checks .", "and keep a steady pace .", rare="and test a small part ."),
        _slot("precaution", "no gloves needed .", "wear thick gloves .", "ask a friend along ."),
        _slot("closing", "it will go fast .", "tell me how it goes ."),
    ),
)
