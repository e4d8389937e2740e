"""Dialogues in one text, as HH-RLHF writes them: turns that begin with `\\n\\nHuman:` and `\\n\\nAssistant:`."""

from __future__ import annotations

import re

from pddpo_ray.data.problems import RowError
from pddpo_ray.records import Message

TURN = re.compile(r"\n\n(Human|Assistant):")
SPEAKER = {"Human": "user", "Assistant": "assistant"}


def is_transcript(value: object) -> bool:
    return isinstance(value, str) and value.startswith("\n\nHuman:")


def is_open_transcript(value: object) -> bool:
    """A dialogue that waits for the assistant's reply: a prompt."""
    return is_transcript(value) and str(value).rstrip().endswith("\n\nAssistant:")


def turns(text: str, name: str) -> list[Message]:
    """All turns of a transcript; the last one may be empty. RowError if it is none."""
    if not is_transcript(text):
        raise RowError("bad-transcript", f"`{name}` does not begin with a Human turn")
    pieces = TURN.split(text)[1:]
    messages = [Message(SPEAKER[who], said.strip()) for who, said in zip(pieces[::2], pieces[1::2], strict=True)]
    for index, message in enumerate(messages):
        if message.role != ("assistant" if index % 2 else "user"):
            raise RowError("bad-transcript", f"turn {index + 1} of `{name}`: Human and Assistant do not alternate")
        if not message.content and index < len(messages) - 1:
            raise RowError("empty-text", f"turn {index + 1} of `{name}` is empty")
    if messages[-1].role != "assistant":
        raise RowError("bad-transcript", f"`{name}` does not end with an Assistant turn")
    return messages


def opened(text: str, name: str) -> tuple[Message, ...]:
    """The turns of a prompt in this form, without the empty last one."""
    messages = turns(text, name)
    if messages[-1].content:
        raise RowError("bad-transcript", f"`{name}` ends with a reply; a prompt ends with `Assistant:`")
    return tuple(messages[:-1])
