"""How varied texts are. Pure functions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence


def distinct(texts: Iterable[Sequence[Hashable]], n: int) -> float | None:
    """Different runs of n words over all runs, of all texts together (Li et al. 2016, distinct-n); None without a run.

    distinct([["a", "b", "a"], ["a", "b"]], 1) = 2/5; with n = 2: {ab, ba} of ab, ba, ab = 2/3
    """
    runs = [tuple(text[start : start + n]) for text in texts for start in range(len(text) - n + 1)]
    return len(set(runs)) / len(runs) if runs else None
