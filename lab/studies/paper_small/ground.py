"""What every method of the study stands on: rows for the scorers, prompts, the reference's answers and their labels.

The set of pairs is drawn and labelled once and is fixed: two of three own answers of the reference to each prompt, and
which one is better and which one safer by the runs' reward and cost scorer. The judges learned from other prompts.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.studies.real_model.own_draws import asked_once
from lab.studies.real_model.scorers import SUFFIX, rows_of
from pddpo_ray.evaluate.scorers import lazy_scorer
from pddpo_ray.records import Message

HELPFUL, HARMFUL = "helpful", "harmful"
PROMPTS, ASKED = 152, 100
"""Of each kind: questions that no scorer learns from, and those of them that the reference answers."""
WORDS = 14
"""Longest question of either kind."""
EACH = 3
"""Answers of the reference to a prompt, of which two become a pair."""
CHARACTERS = {"reward": 600, "cost": 450}
"""Longest prompt and answer together that a scorer learns from: about 150 and 110 tokens."""
WHO = ("run", "judge")
DTYPE = "bfloat16"
FILES = {"reward": "preferences_helpful", "cost": "pku_saferlhf"}


def write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def write_ground(data: Path, work: Path) -> None:
    """`prompts.jsonl`, and the scorers' rows: none has one of the prompts, and run and judge share no prompt."""
    asked = prompts(data)
    write(work / "prompts.jsonl", [{"prompt": one + SUFFIX} for kind in asked.values() for one in kind[:ASKED]])
    taken = {one for kind in asked.values() for one in kind}
    for kind, name in FILES.items():
        rows = [row for part in ("train", "test") for row in rows_of(data / f"{name}_{part}.jsonl.gz")]
        short = [row for row in rows if _length(row) <= CHARACTERS[kind]]
        free = [row for row in short if not any(one in row["prompt"] for one in taken)]
        for half, who in enumerate(WHO):
            own = [row for row in free if zlib.crc32(row["prompt"].encode()) % 2 == half]
            write(work / f"{who}-{kind}.jsonl", own)


def prompts(data: Path) -> dict[str, list[str]]:
    """Short questions of both kinds, in an order drawn by seed 0."""
    helpful = asked_once(data / "preferences_helpful_train.jsonl.gz")
    harmful = sorted({row["prompt"].strip() for row in rows_of(data / "pku_saferlhf_prompts.jsonl.gz")})
    drawn = {}
    for kind, questions in ((HELPFUL, helpful), (HARMFUL, harmful)):
        short = [one for one in questions if len(one.split()) <= WORDS]
        drawn[kind] = random.Random(0).sample(short, PROMPTS)
    return drawn


def _length(row: dict[str, Any]) -> int:
    answers = [row[name] for name in ("chosen", "rejected", "response_0", "response_1") if name in row]
    return len(row["prompt"]) + max(map(len, answers))


# --- pairs ----------------------------------------------------------------------------------------------------------


def write_pairs(work: Path) -> dict[str, Any]:
    """`pairs.jsonl` from the reference's answers, in the columns of PKU-SafeRLHF, and what is known of them."""
    by_prompt: dict[str, list[str]] = {}
    for line in (work / "draws" / "answers.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        by_prompt.setdefault(row["prompt"], []).append(row["answer"])
    asking = [([Message("user", prompt)], answer) for prompt, answers in by_prompt.items() for answer in answers]
    scores = {}
    for kind in FILES:
        score = lazy_scorer(str(work / "scorers" / f"run-{kind}"), DTYPE)
        scores[kind] = np.array(score(asking)).reshape(-1, EACH)
    rows = [
        _pair(prompt, answers, scores["reward"][index], scores["cost"][index], scores)
        for index, (prompt, answers) in enumerate(by_prompt.items())
    ]
    kept = [row for row in rows if row["response_0"] != row["response_1"]]
    write(work / "pairs.jsonl", kept)
    return {
        "prompts": len(by_prompt),
        "pairs": len(kept),
        "differ": float(np.mean([row["better_response_id"] != row["safer_response_id"] for row in kept])),
        **{kind: {"mean": float(values.mean()), "sd": float(values.std(ddof=1))} for kind, values in scores.items()},
    }


def _pair(
    prompt: str, answers: Sequence[str], reward: np.ndarray, cost: np.ndarray, scores: dict[str, np.ndarray]
) -> dict[str, Any]:
    """The two answers that the scorers tell apart most, each in its own standard deviations."""
    of = {kind: values.std() for kind, values in scores.items()}
    apart = np.abs(reward[:, None] - reward) / of["reward"] + np.abs(cost[:, None] - cost) / of["cost"]
    first, second = (int(side) for side in np.unravel_index(np.argmax(np.triu(apart, 1)), apart.shape))
    return {
        "prompt": prompt,
        "response_0": answers[first],
        "response_1": answers[second],
        "better_response_id": int(reward[second] > reward[first]),
        "safer_response_id": int(cost[second] < cost[first]),
        "is_response_0_safe": bool(cost[first] <= scores["cost"].mean()),
        "is_response_1_safe": bool(cost[second] <= scores["cost"].mean()),
    }
