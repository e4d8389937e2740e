"""Files of answers: a JSON object a line with `prompt` (text or messages), `response`, perhaps `set`, `reference`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.limits.sources import Answer
from pddpo_ray.records import Message


def read_answers(path: Path) -> list[Answer]:
    """Rows of a JSON-lines file with `prompt` (text or messages), `response` and perhaps `set`. Raises UserError."""
    answers = [replace(answer_of(row, where), where=f"row {number}") for number, where, row in json_rows(path)]
    if not answers:
        raise UserError(f"{path} holds no answers")
    return answers


def json_rows(path: Path) -> Iterator[tuple[int, str, Any]]:
    """Number, place and content of each row of a JSON-lines file. Raises UserError."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a file with one JSON object a line")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as text ({error})") from error
    for number, line in enumerate(lines, start=1):
        where = f"{path.name} line {number}"
        try:
            if line.strip():
                yield number, where, json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{where} is not JSON: {error}") from error


def asked_turns(row: Any, where: str) -> tuple[Message, ...]:
    """The turns of a row's `prompt`; none where it is text. Raises UserError."""
    if not isinstance(row, dict) or "prompt" not in row:
        raise UserError(f"{where} has no `prompt`")
    return turns_of(row["prompt"], where)


def answer_of(row: Any, where: str) -> Answer:
    """The answer that a row holds. Raises UserError with what is wrong about it."""
    if not isinstance(row, dict):
        raise UserError(f'{where} is no JSON object; write {{"prompt": ..., "response": ...}}')
    for key in ("prompt", "response"):
        if key not in row:
            raise UserError(f"{where} has no `{key}`; its keys are {', '.join(row) or 'none'}")
    if not isinstance(row["response"], str):
        raise UserError(f"{where}: `response` must be text, got {type(row['response']).__name__}")
    reference = row.get("reference")
    if reference is not None and not isinstance(reference, str):
        raise UserError(f"{where}: `reference` is the reference's answer as text, got {type(reference).__name__}")
    turns = turns_of(row["prompt"], where)
    prompt = row["prompt"] if isinstance(row["prompt"], str) else "\n\n".join(turn.content for turn in turns)
    return Answer(prompt, row["response"], row, turns, reference)


def turns_of(prompt: Any, where: str) -> tuple[Message, ...]:
    """The turns of a conversation; none where the prompt is text."""
    if isinstance(prompt, str):
        return ()
    turns = [turn for turn in prompt if isinstance(turn, dict)] if isinstance(prompt, list) else []
    if not turns or not all(isinstance(turn.get("content"), str) for turn in turns) or len(turns) < len(prompt):
        raise UserError(f'{where}: `prompt` must be text or messages [{{"role": ..., "content": ...}}]')
    return tuple(Message(str(turn.get("role", "user")), turn["content"]) for turn in turns)
