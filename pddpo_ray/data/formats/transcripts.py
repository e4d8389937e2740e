"""Dialogues in one text: turns that begin with the speaker's name, as HH-RLHF and others write them."""

from __future__ import annotations

import re

from pddpo_ray.data.checks.problems import RowError
from pddpo_ray.records import Message

HUMANS = ("Human", "HUMAN", "User", "USER", "Instruction")
SPEAKERS = (*HUMANS, "Assistant", "Response", "ASSISTANT", "AI")
ANYBODY = "|".join(SPEAKERS)
STYLES = (
    re.compile(r"\n\n(Human|Assistant):"),
    re.compile(rf"(?:\A\s*|\n\s*)### ?({ANYBODY}):"),
    re.compile(rf"(?:\A\s*|\n\s*)({ANYBODY}):"),
    re.compile(r"(?:\A\s*|<\|im_end\|>\s*)<\|im_start\|>(user|assistant|system)\n"),
)
"""How a turn begins, HH-RLHF's first."""
END = re.compile(r"(<\|im_end\|>|</s>)\s*\Z")
SPEAKER = re.compile(rf"\A\s*(?:### ?)?(?:{ANYBODY}):")
LABEL = re.compile(rf"\A\s*(?:### ?)?(?:{ANYBODY}|Question|Answer|Prompt|Input|Output|Q|A):")
"""Labels of a question or its answer where one text holds both."""
HH = "\n\nHuman:"


def is_transcript(text: str) -> bool:
    """Whether a text begins with a turn of a person and holds one of the assistant."""
    return text.startswith(HH) or _style(text) is not None


def is_open(text: str) -> bool:
    """A dialogue that waits for the assistant's reply: a prompt."""
    if not is_transcript(text):
        return False
    last = _pieces(text)[-1]
    return _role(last[0]) == "assistant" and not last[1].strip()


def turns(text: str, name: str) -> tuple[Message, ...]:
    """All turns of a transcript; the last one may be empty. RowError if it is none."""
    if not is_transcript(text):
        raise RowError("bad-transcript", f"`{name}` does not begin with a Human turn")
    pieces = _pieces(text)
    messages = [Message(_role(speaker), words.strip()) for speaker, words in pieces[:-1]]
    messages.append(Message(_role(pieces[-1][0]), reply_of(END.sub("", pieces[-1][1])).rstrip()))
    spoken = messages[1:] if messages[0].role == "system" else messages
    for index, message in enumerate(spoken):
        if message.role != ("assistant" if index % 2 else "user"):
            raise RowError("bad-transcript", f"turn {index + 1} of `{name}`: Human and Assistant do not alternate")
        if not message.content and index < len(spoken) - 1:
            raise RowError("empty-text", f"turn {index + 1} of `{name}` is empty")
    if messages[-1].role != "assistant":
        raise RowError("bad-transcript", f"`{name}` does not end with an Assistant turn")
    return tuple(messages)


def opened(text: str, name: str) -> tuple[Message, ...]:
    """The turns of a prompt in this form, without the empty last one."""
    return turns(text, name)[:-1]


def reply_of(text: str) -> str:
    """The text after a speaker's name, without the space or new lines between them; indentation is kept."""
    return re.sub(r"\A(?:\s*\n| +)", "", text)


def without_speaker(text: str) -> str:
    """A text without a speaker's name before it."""
    return SPEAKER.sub("", text)


def _style(text: str) -> re.Pattern[str] | None:
    for style in STYLES:
        opening = style.match(text)
        if (
            opening
            and _role(opening[1]) != "assistant"
            and any(_role(match[1]) == "assistant" for match in style.finditer(text))
        ):
            return style
    return None


def _pieces(text: str) -> list[tuple[str, str]]:
    """(speaker, words) of every turn."""
    pieces = (_style(text) or STYLES[0]).split(text)[1:]
    return list(zip(pieces[::2], pieces[1::2], strict=True))


def _role(speaker: str) -> str:
    return "system" if speaker == "system" else "user" if speaker.capitalize() in HUMANS else "assistant"
