"""Rows for the data tests, made in code, and a generator of large files to measure memory with.

python tests/support/data_rows.py 2000000 big.jsonl
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any


def pku(number: int, **changes: Any) -> dict[str, Any]:
    """A whole PKU-SafeRLHF row; equal numbers give equal rows."""
    row = {
        "id": f"row-{number}",
        "prompt": f"What should I know about subject {number}?",
        "response_0": f"Here is what there is to know about {number}.",
        "response_1": f"I would rather not say much about {number}.",
        "is_response_0_safe": number % 2 == 0,
        "is_response_1_safe": True,
        "better_response_id": number % 2,
        "safer_response_id": 1,
    }
    return row | changes


def hh(number: int, **changes: Any) -> dict[str, Any]:
    opening = f"\n\nHuman: Question {number}?\n\nAssistant: Which one?\n\nHuman: The second.\n\nAssistant:"
    return {"chosen": f"{opening} Good answer {number}.", "rejected": f"{opening} Bad answer {number}."} | changes


def chat(number: int, **changes: Any) -> dict[str, Any]:
    row = {
        "prompt": [{"role": "user", "content": f"Question {number}?"}],
        "chosen": [{"role": "assistant", "content": f"Good answer {number}."}],
        "rejected": [{"role": "assistant", "content": f"Bad answer {number}."}],
    }
    return row | changes


def trl(number: int, **changes: Any) -> dict[str, Any]:
    row = {"prompt": f"Question {number}?", "chosen": f"Good answer {number}.", "rejected": f"Bad answer {number}."}
    return row | changes


def lines(*rows: Any) -> bytes:
    """JSON lines; bytes are taken as they are."""
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def generate(rows: int, path: Path, seed: int = 0) -> None:
    """Many different rows of some 600 bytes, one in a thousand of them a repeat."""
    rng = random.Random(seed)
    words = [f"word{place}" for place in range(2000)]
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            said = [" ".join(rng.choices(words, k=length)) for length in (12, 35, 25)]
            row = pku(number, prompt=said[0], response_0=said[1], response_1=said[2])
            line = json.dumps(row) + "\n"
            file.write(line)
            if number % 1000 == 999:
                file.write(line)


if __name__ == "__main__":
    generate(int(sys.argv[1]), Path(sys.argv[2]))
