"""Prompts and answers as trainers hand them over, as the texts that limits measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def prompt_text(prompt: Any) -> str:
    """A prompt as text; of a conversation, its turns with a blank line between them."""
    return prompt if isinstance(prompt, str) else _whole_text([_content(turn) for turn in prompt or ()])


def answer_text(answer: Any) -> str:
    """What the model says in an answer; of turns, those of the assistant without the output of tools."""
    if isinstance(answer, str):
        return answer
    return _whole_text([_content(turn) for turn in answer or () if turn.get("role", "assistant") == "assistant"])


def _content(turn: Mapping[str, Any]) -> str:
    """Text of one turn, or of its text parts; tool calls have none."""
    content = turn.get("content")
    if isinstance(content, str) or content is None:
        return content or ""
    parts = [part if isinstance(part, str) else part.get("text") for part in content]
    return "".join(part for part in parts if isinstance(part, str))


def _whole_text(texts: list[str]) -> str:
    return "\n\n".join(text for text in texts if text)
