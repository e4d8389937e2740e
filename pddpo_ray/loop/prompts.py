"""A cursor over the prompts that survives restarts: seeded permutations, one after another, or independent draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal
from pddpo_ray.records import Prompt
from pddpo_ray.theory.seeds import generator

PHASE = "prompts"


class Prompts:
    """Every prompt comes once per epoch, each epoch in its own order; no prompt is skipped or doubled by a restart.

    With `prior` (probabilities that are not all equal) the draws are independent instead, each with its own seed.
    """

    def __init__(
        self, prompts: Sequence[Prompt], journal: Journal, seed: int, prior: Sequence[float] | None = None
    ) -> None:
        if not prompts:
            raise UserError("there are no prompts to draw: give a world or a prompt file with at least one")
        self._prompts = tuple(prompts)
        self._journal = journal
        self._seed = seed
        self._prior = None if prior is None or np.ptp(prior) < 1e-12 else np.cumsum(prior) / np.sum(prior)
        self._draws: dict[int, int] = {}
        self._orders: dict[int, list[int]] = {}

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
        if self._prior is not None:
            uniform = generator(self._seed, "prompts", position).random()
            return self._prompts[int(np.searchsorted(self._prior, uniform, side="right"))]
        epoch, index = divmod(position, len(self._prompts))
        if epoch not in self._orders:
            order = generator(self._seed, "prompts", epoch).permutation(len(self._prompts))
            self._orders[epoch] = [int(number) for number in order]
        return self._prompts[self._orders[epoch][index]]
