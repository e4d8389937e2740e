"""Named sets of prompts and the weight with which a limit on one of them counts over all prompts.

The objective lives on the union P_0 = sum_s w_s P_s. A limit on the set s, E_{x ~ P_s} E_y [m] <= d, is a limit on P_0
with the cost

    C(x, y) = m(x, y) P_s(x) / P_0(x),     so that  E_{P_0}[C] = E_{P_s}[m]

For sets without common prompts the factor is 1 / w_s inside the set and 0 outside it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pddpo_ray.records import Array


@dataclass(frozen=True, eq=False)
class PromptSets:
    """Sets of prompts with their shares. `chances[s, x]` is P_s(x)."""

    names: tuple[str, ...]
    shares: Array
    """[S], sums to 1."""
    prompts: tuple[Hashable, ...]
    """The union, in the order in which the lists name its prompts. [X]"""
    chances: Array
    """[S, X], rows sum to 1."""

    @property
    def weights(self) -> Array:
        """P_0. [X]"""
        return self.shares @ self.chances

    def factor(self, name: str | None) -> Array:
        """P_s(x) / P_0(x) for every prompt; 1 for all prompts together (None). [X]"""
        if name is None:
            return np.ones(len(self.prompts))
        return np.asarray(self.chances[self.names.index(name)] / self.weights)


def prompt_sets(lists: Mapping[str, Sequence[Hashable]], shares: Mapping[str, float]) -> PromptSets:
    """Sets from their lists of prompts; within a list every entry is equally likely, and one named twice counts twice.

    Raises ValueError where a list is empty or the shares are not positive numbers that sum to 1.
    """
    if set(lists) != set(shares) or not lists:
        raise ValueError(
            f"every prompt set needs prompts and a share: {', '.join({*lists} ^ {*shares}) or 'none given'}"
        )
    for name, share in shares.items():
        if not lists[name]:
            raise ValueError(f"prompt set {name} has no prompts")
        if not 0.0 < share <= 1.0:
            raise ValueError(f"prompt set {name}: its share {share} is not above 0 and at most 1")
    total = math.fsum(shares.values())
    if abs(total - 1.0) > 1e-6:
        raise ValueError(f"the shares of the prompt sets sum to {100 * total:.6g} %, not to 100 %")
    union = {prompt: index for index, prompt in enumerate(dict.fromkeys(p for items in lists.values() for p in items))}
    chances = np.zeros((len(lists), len(union)))
    for row, members in enumerate(lists.values()):
        for prompt in members:
            chances[row, union[prompt]] += 1.0 / len(members)
    return PromptSets(tuple(lists), np.array([shares[name] / total for name in lists]), tuple(union), chances)


def furthest_behind(shares: Array, counts: ArrayLike) -> int:
    """The set whose turn it is after these turns of each: the one that is furthest behind its share. [S], [S] -> []

    After n turns every count is within one of n * share, and equal to it where all of these are whole.
    """
    turn_counts = np.asarray(counts, dtype=np.float64)
    return int(np.argmax(np.asarray(shares) * (turn_counts.sum() + 1.0) - turn_counts))


def turns(shares: Array, count: int) -> list[int]:
    """Whose turn it is in each of `count` draws from the beginning. [S] -> [count]"""
    counts = np.zeros(len(shares))
    order = []
    for _ in range(count):
        order.append(furthest_behind(shares, counts))
        counts[order[-1]] += 1
    return order


def split_by_share(total: int, shares: Array) -> NDArray[np.int64]:
    """`total` draws over the sets by the largest remainders of total * share. [S] -> [S], sums to total"""
    quotas = np.asarray(shares) * total
    counts = np.floor(quotas + 1e-9).astype(np.int64)
    order = np.argsort(-(quotas - counts), kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts
