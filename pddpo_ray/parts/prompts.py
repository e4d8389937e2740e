"""A cursor over the prompts that survives restarts: seeded permutations, one after another, or independent draws.

Prompt sets take turns by their shares, so that every draw of some size has each set's part to within one prompt.
A run that certifies mixtures from its rounds' own draws needs them independent: in epochs, a round's policy could do
badly on the prompts that were just asked, and no draw of the epoch would show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal
from pddpo_ray.records import Array, Prompt
from pddpo_ray.theory.estimates.prompt_sets import PromptSets, furthest_behind
from pddpo_ray.theory.seeds import generator

PHASE = "prompts"
Item = TypeVar("Item")


class Prompts:
    """Every prompt comes once per epoch, each epoch in its own order; no prompt is skipped or doubled by a restart.

    With `prior` (probabilities that are not all equal) the draws are independent instead, each with its own seed. With
    `sets`, over the prompts' positions, each set has such epochs of its own prompts.

    `independent`: all draws are, each uniform or by the prior; with `sets` uniform in the set whose turn it is, and
    the turns begin anew with every draw, so that draws of one size have equally many prompts of each set.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        journal: Journal,
        seed: int,
        prior: Sequence[float] | None = None,
        sets: PromptSets | None = None,
        *,
        independent: bool = False,
    ) -> None:
        if not prompts:
            raise UserError("there are no prompts to draw: give a world or a prompt file with at least one")
        self._prompts = tuple(prompts)
        self._journal = journal
        self._seed = seed
        chances = np.ones(len(prompts)) if prior is None else np.asarray(prior)
        self._prior = cumulated(chances) if independent or np.ptp(chances) >= 1e-12 else None
        self._sets = None if sets is None else Turns(sets)
        self._independent = independent
        self._draws: dict[int, int] = {}
        self._orders: dict[str, list[int]] = {}

    def draw(self, count: int) -> list[Prompt]:
        """The next `count` prompts. The start of every draw is journalled as a phase of its round."""
        number = self._draws[self._journal.round] = self._draws.get(self._journal.round, 0) + 1
        span = self._journal.once(f"{PHASE}-{number}", lambda: {"start": self._last_end(), "count": count})
        return [self._prompt_at(span["start"], index) for index in range(span["count"])]

    def _last_end(self) -> int:
        """Where the last journalled draw ended."""
        draws = [entry.payload for entry in self._journal.phases(like=f"{PHASE}-%")]
        return max((draw["start"] + draw["count"] for draw in draws), default=0)

    def _prompt_at(self, start: int, index: int) -> Prompt:
        position = start + index
        if self._sets is not None:
            name, turn = self._sets.at(index if self._independent else position)
            members = self._sets.members[name]
            if self._independent:
                return self._prompts[members[self._draw_index(cumulated(np.ones(len(members))), position)]]
            return self._prompts[members[self._epoch_index(turn, len(members), name)]]
        if self._prior is not None:
            return self._prompts[self._draw_index(self._prior, position)]
        return self._prompts[self._epoch_index(position, len(self._prompts))]

    def _draw_index(self, below: Array, position: int) -> int:
        return int(drawn_at(below, generator(self._seed, "prompts", position).random()))

    def _epoch_index(self, position: int, count: int, *name: str) -> int:
        """Which of `count` prompts comes at a position: each once per epoch, every epoch in an order of its own."""
        epoch, index = divmod(position, count)
        key = "/".join((*name, str(epoch)))
        if key not in self._orders:
            order = generator(self._seed, "prompts", *name, epoch).permutation(count)
            self._orders[key] = [int(number) for number in order]
        return self._orders[key][index]


def cumulated(chances: ArrayLike) -> Array:
    """Chances of this place and all before it. [n] -> [n], the last one 1"""
    return np.asarray(np.cumsum(chances) / np.sum(chances))


def drawn_at(below: Array, uniforms: ArrayLike) -> NDArray[np.int64]:
    """Places that uniform numbers in [0, 1) draw: each as often as its chance says. [n], [...] -> [...]"""
    return np.asarray(np.searchsorted(below, uniforms, side="right"))


class Turns:
    """Which set's turn it is at every position: the one that is furthest behind its share."""

    def __init__(self, sets: PromptSets) -> None:
        self.members: dict[str, list[int]] = {}
        for name, chances in zip(sets.names, sets.chances, strict=True):
            # a prompt that a list names twice comes twice an epoch
            times = np.rint(chances / chances[chances > 0].min()).astype(int)
            self.members[name] = [int(str(sets.prompts[index])) for index in np.repeat(np.arange(len(times)), times)]
        self._names, self._shares = sets.names, sets.shares
        self._counts = np.zeros(len(sets.names))
        self._turns: list[tuple[str, int]] = []

    def at(self, position: int) -> tuple[str, int]:
        """The set, and how many prompts of it came before."""
        while len(self._turns) <= position:
            index = furthest_behind(self._shares, self._counts)
            self._turns.append((self._names[index], int(self._counts[index])))
            self._counts[index] += 1
        return self._turns[position]


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """At most `count` of them, the first and the last among them, evenly spaced."""
    indices = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[index] for index in indices]


def spread_prompts(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """At most `count` different prompts, spread over them."""
    return spread(list({prompt.id: prompt for prompt in prompts}.values()), count)
