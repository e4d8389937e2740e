"""Seeds from names: every draw of a run has its own, and none depends on the order in which things happen."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


def seed_of(*parts: int | str) -> int:
    """A seed in [0, 2^63) that follows from its parts alone, e.g. (run seed, round, purpose, index)."""
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], "little") >> 1


def generator(*parts: int | str) -> np.random.Generator:
    """A random generator of its own for one purpose."""
    return np.random.default_rng(seed_of(*parts))


def generator_of(seed: int, *names: str) -> np.random.Generator:
    """A random generator that follows from a seed and names alone, such as the id of what is drawn for."""
    digest = hashlib.sha256("\n".join(names).encode(errors="surrogatepass")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])


def counts(n: int | Sequence[int], prompts: int) -> list[int]:
    """How many answers each of a number of prompts gets. Raises ValueError unless there is one number per prompt."""
    numbers = [n] * prompts if isinstance(n, int) else list(n)
    if len(numbers) != prompts:
        raise ValueError(f"{len(numbers)} counts of answers for {prompts} prompts")
    return numbers


def draw_seeds(seed: int, n: int) -> list[int]:
    """n seeds in [0, 2^63) for the n answers of one prompt; a longer list begins with the shorter one.

    Engines count children up from a parent's seed, so neighbouring prompt seeds would share answers; hashing keeps
    them apart.
    """
    return [
        int(np.random.SeedSequence([seed, draw]).generate_state(1, np.uint64)[0] >> np.uint64(1)) for draw in range(n)
    ]
