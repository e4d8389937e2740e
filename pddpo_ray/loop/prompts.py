"""A cursor over the prompts that survives restarts: seeded permutations, one after another, or independent draws.

Prompt sets take turns by their shares, so that every draw of some size has each set's part to within one prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal
from pddpo_ray.records import Prompt
from pddpo_ray.theory.prompt_sets import PromptSets
from pddpo_ray.theory.seeds import generator

PHASE = "prompts"


class Prompts:
    """Every prompt comes once per epoch, each epoch in its own order; no prompt is skipped or doubled by a restart.

    With `prior` (probabilities that are not all equal) the draws are independent instead, each with its own seed. With
    `sets`, over the prompts' positions, each set has such epochs of its own prompts.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        journal: Journal,
        seed: int,
        prior: Sequence[float] | None = None,
        sets: PromptSets | None = None,
    ) -> None:
        if not prompts:
            raise UserError("there are no prompts to draw: give a world or a prompt file with at least one")
        self._prompts = tuple(prompts)
        self._journal = journal
        self._seed = seed
        self._prior = None if prior is None or np.ptp(prior) < 1e-12 else np.cumsum(prior) / np.sum(prior)
        self._sets = None if sets is None else Turns(sets)
        self._draws: dict[int, int] = {}
        self._orders: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def all(self) -> tuple[Prompt, ...]:
        return self._prompts

    def draw(self, count: int) -> list[Prompt]:
        """The next `count` prompts. The start of every draw is journalled as a phase of its round."""
        number = self._draws[self._journal.round] = self._draws.get(self._journal.round, 0) + 1
        span = self._journal.once(f"{PHASE}-{number}", lambda: {"start": self._end(), "count": count})
        return [self._at(position) for position in range(span["start"], span["start"] + span["count"])]

    def _end(self) -> int:
        """Where the last journalled draw ended."""
        draws = [entry.payload for entry in self._journal.phases(like=f"{PHASE}-%")]
        return max((draw["start"] + draw["count"] for draw in draws), default=0)

    def _at(self, position: int) -> Prompt:
        if self._sets is not None:
            name, turn = self._sets.at(position)
            members = self._sets.members[name]
            return self._prompts[members[self._in_epochs(turn, len(members), name)]]
        if self._prior is not None:
            uniform = generator(self._seed, "prompts", position).random()
            return self._prompts[int(np.searchsorted(self._prior, uniform, side="right"))]
        return self._prompts[self._in_epochs(position, len(self._prompts))]

    def _in_epochs(self, position: int, count: int, *name: str) -> int:
        """Which of `count` prompts comes at a position: each once per epoch, every epoch in an order of its own."""
        epoch, index = divmod(position, count)
        key = "/".join((*name, str(epoch)))
        if key not in self._orders:
            order = generator(self._seed, "prompts", *name, epoch).permutation(count)
            self._orders[key] = [int(number) for number in order]
        return self._orders[key][index]


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
            behind = self._shares * (len(self._turns) + 1) - self._counts
            chosen = int(np.argmax(behind))
            self._turns.append((self._names[chosen], int(self._counts[chosen])))
            self._counts[chosen] += 1
        return self._turns[position]
