"""Seeds of single draws: the n answers of a prompt come from n seeds that follow from the prompt's seed alone."""

from __future__ import annotations

import numpy as np

from pddpo_ray.contracts import Count


def counts(n: Count, prompts: int) -> list[int]:
    """How many answers each of a number of prompts gets. Raises ValueError unless there is one number per prompt."""
    each = [n] * prompts if isinstance(n, int) else list(n)
    if len(each) != prompts:
        raise ValueError(f"{len(each)} counts of answers for {prompts} prompts")
    return each


def draw_seeds(seed: int, n: int) -> list[int]:
    """n seeds in [0, 2^63) for the n answers of one prompt; a longer list begins with the shorter one.

    Engines count children up from a parent's seed, so neighbouring prompt seeds would share answers; hashing keeps
    them apart.
    """
    return [
        int(np.random.SeedSequence([seed, draw]).generate_state(1, np.uint64)[0] >> np.uint64(1)) for draw in range(n)
    ]
