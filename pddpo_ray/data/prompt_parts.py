"""Splits a user's prompts into those that rounds ask and those that certificates draw; no question is in both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pddpo_ray.data.checks.inspection import Settings
from pddpo_ray.data.formats.example import Example
from pddpo_ray.data.lengths import read_examples
from pddpo_ray.text.templates import as_dicts
from pddpo_ray.theory.seeds import generator


def different_prompts(files: Sequence[str]) -> list[Example]:
    """The prompts of files in any format, each once, in the files' order."""
    return list({example.prompt: example for example in read_examples(files, Settings(judged=False))}.values())


def two_parts(prompts: Sequence[Example], first: int) -> tuple[list[Example], list[Example]]:
    """About `first` of them, or half if that is less, drawn by a fixed seed; and the others.

    Conversations that begin with the same question stay together.
    """
    by_question: dict[str, list[Example]] = {}
    for example in prompts:
        by_question.setdefault(example.question, []).append(example)
    questions = list(by_question.values())
    order = generator("prompts in two parts", len(questions)).permutation(len(questions))
    parts: tuple[list[Example], list[Example]] = ([], [])
    for index in order:
        parts[len(parts[0]) >= min(first, len(prompts) // 2)].extend(questions[index])
    return parts


def write_prompts(prompts: Sequence[Example], path: Path) -> None:
    """JSON lines, as `data.prompts` and `certificate.prompts` read them."""
    categories = ({} if example.category is None else {"category": example.category} for example in prompts)
    rows = ({"prompt": as_dicts(example.prompt), **extra} for example, extra in zip(prompts, categories, strict=True))
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
