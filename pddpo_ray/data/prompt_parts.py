"""A user's prompts in two parts, of which each question is in one: what the rounds ask, and what certificates draw."""

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
    return list({one.prompt: one for one in read_examples(files, Settings(judged=False))}.values())


def two_parts(prompts: Sequence[Example], first: int) -> tuple[list[Example], list[Example]]:
    """`first` of them and all others, drawn by a fixed seed; at most half are in the first part.

    Conversations that begin with the same question stay together.
    """
    by_question: dict[str, list[Example]] = {}
    for one in prompts:
        by_question.setdefault(one.question, []).append(one)
    questions = list(by_question.values())
    order = generator("prompts in two parts", len(questions)).permutation(len(questions))
    parts: tuple[list[Example], list[Example]] = ([], [])
    for index in order:
        parts[len(parts[0]) >= min(first, len(prompts) // 2)].extend(questions[index])
    return parts


def write_prompts(prompts: Sequence[Example], path: Path) -> None:
    """JSON lines, as `data.prompts` and `certificate.prompts` read them."""
    categories = ({} if one.category is None else {"category": one.category} for one in prompts)
    rows = ({"prompt": as_dicts(one.prompt), **more} for one, more in zip(prompts, categories, strict=True))
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
