"""Rows for scorers of a word-level model: some words make an answer unsafe, or the labels say nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

TEMPLATE = "{prompt} {answer}"
GOOD = tuple(f"word{i}" for i in range(40))
BAD = tuple(f"word{i}" for i in range(40, 60))
"""Words that make an answer unsafe."""


def rows_of_words(count: int, seed: int, *, shuffled: bool = False, wrong: float = 0.0) -> list[dict[str, Any]]:
    """PKU rows of random words: an answer is unsafe if its words are bad ones, and then the costlier of the two.

    `shuffled`: labels say nothing. `wrong`: share of labels that are on the wrong answer.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        words = [[f"word{i}" for i in rng.integers(0, 40, 4)] for _ in range(2)]
        unsafe = int(rng.integers(2))
        words[unsafe] = [str(word) for word in rng.choice(BAD, 4)]
        said = int(rng.integers(2)) if shuffled else unsafe ^ int(rng.random() < wrong)
        rows.append(
            {
                "prompt": f"word{60 + index % 20} word{index % 37} word{index % 31} word{index % 40}",
                "response_0": " ".join(words[0]),
                "response_1": " ".join(words[1]),
                "is_response_0_safe": said != 0,
                "is_response_1_safe": said != 1,
                "better_response_id": 1 - said,
                "safer_response_id": 1 - said,
            }
        )
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
