"""What is asked: prompt and preference files of every known format, some of them under a short name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pddpo_ray.config.file_checks import HUB
from pddpo_ray.data import Example, Settings, inspect
from pddpo_ray.data.checks.problems import Problem
from pddpo_ray.errors import UserError
from pddpo_ray.records import Message

Item = TypeVar("Item")
PUBLIC = {
    "truthfulqa": ("truthfulqa.csv", f"{HUB}truthfulqa/truthful_qa@generation:validation"),
    "pku-test": ("pku_saferlhf_test.jsonl.gz", f"{HUB}PKU-Alignment/PKU-SafeRLHF-30K:test"),
}
"""Short names of public sets: a file in the folder of shared data, and where it is missing the set on the hub."""


@dataclass(frozen=True)
class HeldOutPair:
    """A labelled pair; indices of the better and of the safer answer, None without a label."""

    prompt: tuple[Message, ...]
    answers: tuple[str, str]
    better: int | None
    safer: int | None


@dataclass(frozen=True)
class EvaluationSet:
    """Questions to be answered, and pairs whose labels a policy should agree with. `benign`: refusing is a fault."""

    name: str
    questions: tuple[tuple[Message, ...], ...]
    pairs: tuple[HeldOutPair, ...] = ()
    benign: bool = False


def read_set(
    source: str | Sequence[Mapping[str, Any]], *, limit: int | None = None, benign: bool = False, seed: int = 0
) -> EvaluationSet:
    """A file, folder, `hf:` name or short name, or rows in memory. At most `limit` different questions and as many
    pairs, drawn by seed.

    Damaged rows of a file are left out (`pddpo data check` names them), in memory they are refused. UserError if
    nothing is left.
    """
    place = locate(source) if isinstance(source, str) else source
    inspection = inspect([place], Settings(judged=False))
    examples = [row.example for row in inspection.examples()]
    questions = list(dict.fromkeys(example.prompt for example in examples))
    pairs = [_pair(example) for example in examples if len(example.answers) == 2]
    if not isinstance(source, str):
        _demand_all_good(inspection.problems, questions)
    if not questions:
        raise UserError(f"{source} holds no question that can be asked: see `pddpo data check {place}`")
    generator = np.random.default_rng([seed, 311])
    name = Path(source).name.partition(".")[0] if isinstance(source, str) else "rows"
    return EvaluationSet(
        name, tuple(_random_subset(questions, limit, generator)), tuple(_random_subset(pairs, limit, generator)), benign
    )


def _demand_all_good(problems: Sequence[Problem], questions: Sequence[object]) -> None:
    """Raises UserError for a bad row, or none: `pddpo data check` cannot name rows in memory."""
    for problem in problems[:1]:
        row = f"row {problem.line}" if problem.line else "the rows"
        raise UserError(f"{row} in memory: {problem.reason}; the rows of one set have one form")
    if not questions:
        raise UserError("the rows in memory hold no question: give at least one with a `prompt`")


def locate(source: str) -> str:
    """The file or the hub's set behind a short name; anything else as it is."""
    if source not in PUBLIC or Path(source).exists():
        return source
    name, on_hub = PUBLIC[source]
    shared_folder = Path(__file__).resolve().parents[2].parent / "shared"
    folders = (Path(os.environ.get("PDDPO_SHARED", shared_folder)), shared_folder)
    files = (file for folder in folders for file in (folder / "data" / name, folder / name) if file.is_file())
    return str(next(files, on_hub))


def _pair(example: Example) -> HeldOutPair:
    first, second = (answer.text for answer in example.answers)
    return HeldOutPair(example.prompt, (first, second), example.better, example.safer)


def _random_subset(items: Sequence[Item], limit: int | None, generator: np.random.Generator) -> list[Item]:
    """All items, or `limit` of them at random, in their order."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[index] for index in sorted(generator.choice(len(items), limit, replace=False))]
