"""Prompts of the kept limit on SmolLM2's length.

    python -m lab.studies.real_model.kept_length --data FOLDER --out FOLDER

Questions of HH-RLHF of one turn and at most 18 words, each asked for one short sentence: 600 for the rounds
(`rounds.jsonl`), the others of the training file for the certificate (`certify.jsonl`), those of the test file for the
check afterwards (`fresh.jsonl`). The commands that read them stand in `lab/studies/real_model/kept_length.json`.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from lab.studies.real_model.own_draws import asked_once

SUFFIX = " Answer in one short sentence."
ROUNDS = 600


def questions(file: Path) -> list[str]:
    """Questions of one turn, each once, in an order drawn by seed 0."""
    order = asked_once(file)
    random.Random(0).shuffle(order)
    return order


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.studies.real_model.kept_length")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with preferences_helpful_{train,test}.jsonl.gz"
    )
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    train, test = (questions(given.data / f"preferences_helpful_{part}.jsonl.gz") for part in ("train", "test"))
    given.out.mkdir(parents=True, exist_ok=True)
    for name, asked in (("rounds", train[:ROUNDS]), ("certify", train[ROUNDS:]), ("fresh", test)):
        rows = [json.dumps({"prompt": one + SUFFIX}) + "\n" for one in asked]
        (given.out / f"{name}.jsonl").write_text("".join(rows))


if __name__ == "__main__":
    main()
