"""Builds dialogues from a row's columns, for every format: texts, transcripts, messages and parts become turns.

A row's prompt is made of all columns that hold a piece of it (`prompt_of`); an answer is the last turn of its column
(`side`), whose earlier turns are the prompt's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

from pddpo_ray.data.checks.problems import RowError, shown
from pddpo_ray.data.formats import columns, transcripts
from pddpo_ray.data.formats.columns import DIALOGUES, HEADS, QUESTIONS, REPLIES, SYSTEM, ReadFields
from pddpo_ray.data.formats.example import Answer, Example
from pddpo_ray.data.formats.fields import checked_text
from pddpo_ray.records import Message

Turns = tuple[Message, ...]
Means = Literal["helpful", "harmless", "both"]
"""What `chosen` means in a file whose format does not tell."""

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter", "customer"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "model", "bot", "chatbot", "ai", "bing", "bard"), "assistant"),
}
TOOL_ROLES = ("tool", "function", "function_call", "function_response", "observation", "ipython", "tool_call")
CALLS = ("tool_use", "tool_call", "tool_result", "function_call", "function")
"""Types of parts that are calls of tools."""
LEARNED = ("weight", "loss", "loss_mask", "loss_weight", "train", "training", "trainable")
"""Fields of a message that say whether it is learned."""
TEXT_PARTS = ("text", "input_text", "output_text")
ASKED, SAID = (*QUESTIONS, "input", "user", "human"), (*REPLIES, "assistant", "model", "gpt", "bot")
"""Keys of a question and of its reply in an object with both."""
MEDIA_MARK = re.compile(
    r"(?im)(?:\A\s*|^[ \t]*(?=\S+[ \t]*$)|(?=<\|))<\|?(image|video|audio)(?:[_ ]?(?:pad|here|\d+))?\|?>"
)
"""Placeholders of media in a text; inside of a line, `<image>` may be what the text is about."""
MARK = r"<\|[^|<>\s]{1,40}\|>|<\uff5c[^<>\uff5c\s]{1,40}\uff5c>|\[/?INST\]|<(?:bos|eos|start_of_turn|end_of_turn)>"
TEMPLATED = re.compile(rf"\A\s*({MARK}|<s>(?=\s*\[INST\]))|({MARK})\w{{0,9}}\s*\Z")
SENTENCE = re.compile(r"\A\s*(<s>)(?!.*</s>)|\A(?!.*<s>).*(</s>)\s*\Z", re.DOTALL)
"""Marks of chat templates where a text begins or ends; within one they may be what it is about. Both `<s>` and `</s>`
are HTML."""
WORDS = 3
"""A prompt of fewer words is not cut from answers: they may begin with it by chance."""


# --- messages --------------------------------------------------------------------------------------------------------


def messages(value: object, name: str) -> Turns:
    """Turns from [{"role": .., "content": ..}, ...]; names of roles and of fields as they are in use."""
    if value is None:
        raise RowError("null-field", f"`{name}` is null")
    if not isinstance(value, list):
        raise RowError("wrong-type", f"`{name}` is a {type(value).__name__}, not a list of messages")
    if not value:
        raise RowError("empty-text", f"`{name}` holds no messages")
    turns = tuple(_message(item, f"{name}[{index}]") for index, item in enumerate(value))
    if turns[-1].role == "assistant":
        _refuse_unlearned_reply(value[-1], f"{name}[{len(turns) - 1}]")
    return turns


def _message(item: object, name: str) -> Message:
    if not isinstance(item, Mapping):
        raise RowError("wrong-type", f"`{name}` is a {type(item).__name__}, not a message with role and content")
    keys = [next((key for key in pair if item.get(key) is not None), pair[0]) for pair in _MESSAGE]
    if not any(key in item for key in _MESSAGE[0]):
        raise RowError("wrong-type", f"`{name}` has no role, so it is no message")
    _refuse_more(item, keys, name)
    role = checked_text(item.get(keys[0]), f"{name}.role")
    role_name = role.strip().lower()
    if role_name in TOOL_ROLES:
        raise RowError(
            "tool-calls", f"`{name}` is a turn of a tool ({shown(role)}): `tool_calls` cannot be trained here"
        )
    if role_name not in ROLES:
        raise RowError("unknown-role", f"`{name}.role` is {shown(role)}; it must be system, user or assistant")
    return Message(ROLES[role_name], checked_text(_content(item.get(keys[1]), f"{name}.content"), f"{name}.content"))


def ends_with_reply(value: object) -> bool:
    """Whether a list of turns ends with a reply."""
    last = value[-1] if isinstance(value, list) and value else None
    if _question_and_reply(last) is not None:
        return True
    role = next((last[key] for key in _MESSAGE[0] if last.get(key)), None) if isinstance(last, Mapping) else None
    return ROLES.get(str(role).strip().lower()) == "assistant"


_MESSAGE = (("role", "from", "speaker"), ("content", "value", "text"))
"""The fields of a message."""


def _refuse_more(item: Mapping[str, Any], keys: Sequence[str], name: str) -> None:
    """RowError where a message holds more than its text."""
    extra = [key for key, value in item.items() if key not in keys and not columns.is_empty(value)]
    columns.refuse_tools(extra, f"{name}.")
    if lost := columns.unread_labels(extra):
        raise RowError("unread-label", f"`{name}.{lost[0]}` would be lost: no label of a single message is read")
    text = next((key for key in extra if columns.holds_text(item[key]) and not columns.is_about(key, item[key])), None)
    if text is not None:
        raise RowError("unread-text", f"`{name}.{text}` would be lost: write it into the content, or take it out")


def _refuse_unlearned_reply(reply: Mapping[str, Any], name: str) -> None:
    """RowError where a reply says that it is not to be learned: `weight: 0` of OpenAI's files, `train: false`, ..."""
    field = next((key for key in LEARNED if reply.get(key) in (0, "0", "false", "False")), None)
    if field is not None:
        raise RowError(
            "unread-label",
            f"`{name}.{field}` says that this reply is not to be learned, which would be lost: take the row or the"
            " field out",
        )


def _content(value: object, name: str) -> object:
    """A message's text; parts are joined with new lines, as the endpoint does."""
    if not isinstance(value, list | Mapping):
        return value
    parts = value if isinstance(value, list) else [value]
    return "\n".join(_part(part, f"{name}[{index}]") for index, part in enumerate(parts)) if parts else None


def _part(part: object, name: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
    if kind in CALLS:
        raise RowError("tool-calls", f"`{name}` is a part of type {shown(kind)}: `tool_calls` cannot be trained here")
    if not isinstance(part, Mapping) or kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
        raise RowError("not-text", f"`{name}` is a part of type {shown(kind)}; only parts of text are read")
    return str(part["text"])


# --- prompts ---------------------------------------------------------------------------------------------------------


def prompt_of(row: ReadFields, before: Turns = (), but: Sequence[str] = ()) -> Turns:
    """The prompt: what is asked, what belongs to it, earlier turns and the system message, each from its column, and
    the turns `before` the answers in theirs. Columns named in `but` hold answers. RowError for two prompts, or none.
    """
    head = next((name for name in HEADS if name not in but and not columns.is_empty(row.peek(name))), None)
    question = () if head is None else _question_turns(row, head, but)
    try:
        prompt = joined(_with_material(row, question, head), before)
    except RowError:  # the turns before the answers may lack the question's context or input
        prompt = _with_material(row, joined(question, before), head)
    prompt = _with_system(row, prompt)
    if not prompt:
        null = next((name for name in QUESTIONS if name in row), None)
        if null is not None:
            checked_text(row[null], null)
        raise row.no_prompt()
    demand_turns(prompt, head or "the turns before the last reply")
    return prompt


def _question_turns(row: ReadFields, head: str, but: Sequence[str]) -> Turns:
    turns = _turns(row[head], head)
    for name in (*DIALOGUES, "history", "context"):
        value = row.peek(name)
        if name != head and name not in but and isinstance(value, list) and not _is_text(value):
            earlier = _turns(row[name], name)
            ends = earlier[-1].role == "assistant" and not _same(earlier[-1:], turns[-1:])
            turns = (*earlier, *turns) if ends else joined(turns, earlier)
    return turns


def _turns(value: object, name: str) -> Turns:
    """Turns from a text, a list of messages, of pairs or of texts, or an object that holds one."""
    if isinstance(value, Mapping) and "messages" in value:
        nested_row = ReadFields(value)
        turns = messages(nested_row["messages"], f"{name}.messages")
        nested_row.demand_read([turn.content for turn in turns])
        return turns
    if isinstance(value, list) and not _is_text(value):
        return _turns_of_list(value, name)
    text = _text(_joined_text(value, name), name)
    if name in DIALOGUES and not transcripts.is_open(text):
        raise RowError("wrong-type", f"`{name}` is a text, not a list of messages")
    return transcripts.opened(text, name) if transcripts.is_open(text) else (Message("user", text),)


def _turns_of_list(value: list[Any], name: str) -> Turns:
    """Turns from a list of messages, or of a question and its reply each."""
    pairs = [_question_and_reply(item) for item in value]
    if not pairs or None in pairs:
        return messages(value, name)
    return tuple(
        Message(role, checked_text(text, f"{name}[{index}]"))
        for index, pair in enumerate(pairs)
        for role, text in zip(("user", "assistant"), pair or (), strict=True)
    )


def _question_and_reply(item: object) -> tuple[object, object] | None:
    """A question and its reply, from a list of two or from an object with both."""
    if isinstance(item, Mapping) and len(item) == 2:
        question_key, reply_key = (next((key for key in item if key in names), None) for names in (ASKED, SAID))
        return None if question_key is None or reply_key is None else (item[question_key], item[reply_key])
    return (item[0], item[1]) if isinstance(item, list) and len(item) == 2 else None


def _text(value: object, name: str) -> str:
    text = checked_text(value, name)
    if columns.MESSAGES_AS_TEXT.match(text):
        raise RowError("wrong-type", f"`{name}` holds messages as a text that is no JSON; write a list of messages")
    return text


def _is_text(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _joined_text(value: object, name: str) -> str:
    whole = "\n\n".join(value) if isinstance(value, list) and value and _is_text(value) else value
    return checked_text(whole, name)


def _with_material(row: ReadFields, turns: Turns, head: str | None) -> Turns:
    """Adds `context` before and `input` after the last turn's text, unless it contains them already."""
    for name, in_front in (("context", True), ("input", False)):
        if name == head or not turns or columns.is_empty(row.peek(name)) or not _is_text(row.peek(name)):
            continue
        last, text = turns[-1], _joined_text(row[name], name)
        if not columns.has_words(last.content, text):
            pieces = (text, last.content) if in_front else (last.content, text)
            turns = (*turns[:-1], replace(last, content="\n\n".join(pieces)))
    return turns


def joined(question: Turns, before: Turns) -> Turns:
    """The prompt that two columns hold, one perhaps without its first turns. RowError if the prompts differ."""
    if not question or not before:
        return question or before
    short, long = sorted((question, before), key=len)
    once = len(question) == 1 and any(_same(question, (turn,)) for turn in before)
    if _same(long[len(long) - len(short) :], short) or once:
        return before if len(before) == len(long) else long
    raise RowError("different-prompts", "the prompt is another one than the turns before the last reply")


def _same(first: Turns, second: Turns) -> bool:
    return [_key(turn) for turn in first] == [_key(turn) for turn in second]


def _key(turn: Message) -> tuple[str, str]:
    return turn.role, " ".join(transcripts.without_speaker(turn.content).split())


def _with_system(row: ReadFields, prompt: Turns) -> Turns:
    """The prompt after the row's system message, where it has one."""
    name = next((name for name in SYSTEM if isinstance(row.peek(name), str) and row.peek(name).strip()), None)
    if name is None or not prompt:
        return prompt
    system = Message("system", checked_text(row[name], name))
    if prompt[0].role != "system":
        return (system, *prompt)
    if not _same(prompt[:1], (system,)):
        raise RowError("different-prompts", f"`{name}` is another system message than that of the turns")
    return prompt


def demand_turns(turns: Sequence[Message], name: str) -> None:
    """RowError unless user and assistant alternate after an optional system message and the user speaks last."""
    exchange = turns[1:] if turns and turns[0].role == "system" else turns
    wrong = [index for index, turn in enumerate(exchange) if turn.role != ("assistant" if index % 2 else "user")]
    if not exchange or wrong or len(exchange) % 2 == 0:
        raise RowError("wrong-turns", f"`{name}` must alternate user and assistant and end with the user")


def refuse_media(turns: Sequence[Message]) -> None:
    """RowError where a question contains a placeholder of a picture, a video or a sound."""
    for turn in turns:
        mark = MEDIA_MARK.search(turn.content) if turn.role == "user" and "<" in turn.content else None
        if mark is not None and f"</{mark[1]}" not in turn.content.lower():
            raise RowError("not-text", f"a question holds the place of a part that is no text ({mark[0].strip()})")


def refuse_marks(texts: Iterable[str]) -> None:
    """RowError where a text begins or ends with a mark of a chat template."""
    for text in texts:
        if "<" not in text and "INST]" not in text:
            continue  # nearly every text: a search takes 15 microseconds
        match = TEMPLATED.search(text) or SENTENCE.match(text)
        if match:
            mark = next(group for group in match.groups() if group)
            raise RowError(
                "special-token",
                f"a text begins or ends with {mark!r}, a mark of a chat template: take such marks out, the run's own"
                " template writes them",
            )


# --- answers ---------------------------------------------------------------------------------------------------------


def side(row: Mapping[str, Any], name: str, *, transcript: bool | None = None) -> Turns:
    """The turns of a column that ends with an answer; a text that is no transcript is the answer alone.

    `transcript`: whether a text is one; None: recognised by its beginning.
    """
    if name not in row:
        raise RowError("missing-field", f"there is no field `{name}`")
    value = row[name]
    if isinstance(value, Mapping):
        value = [value]
    if isinstance(value, list) and value and _is_text(value):
        if len(value) > 1:
            raise RowError("ratings", f"`{name}` holds {len(value)} texts: which one is the answer? Write one a row")
        value = value[0]
    if isinstance(value, list):
        turns = _turns_of_list(value, name)
    else:
        text = _text(value, name)
        whole = transcripts.is_transcript(text) if transcript is None else transcript
        turns = transcripts.turns(text, name) if whole else (Message("assistant", text),)
        checked_text(turns[-1].content, name)
    if turns[-1].role != "assistant":
        raise RowError("wrong-turns", f"`{name}` must end with a message of the assistant")
    return turns


def pair(row: ReadFields, names: Sequence[str]) -> tuple[Turns, tuple[str, str]]:
    """The prompt and both answers of a pair, which stand in the columns `names`."""
    texts = [row.peek(name) for name in names]
    transcript_flags = [isinstance(text, str) and transcripts.is_transcript(text) for text in texts]
    # with a prompt in its own column, one of two answers may itself be a dialogue; without one, the other is damaged
    is_mixed = any(transcript_flags) and not all(transcript_flags) and all(isinstance(text, str) for text in texts)
    transcript = all(columns.is_empty(row.peek(name)) for name in HEADS) if is_mixed else None
    first, second = (side(row, name, transcript=transcript) for name in names)
    if first[:-1] and second[:-1] and not _same(first[:-1], second[:-1]):
        raise RowError("different-prompts", f"`{names[0]}` and `{names[1]}` differ before the last reply")
    repeats = [name for name in DIALOGUES if row.peek(name) in [row.peek(name) for name in names] and row[name]]
    return prompt_of(row, first[:-1] or second[:-1], (*names, *repeats)), (first[-1].content, second[-1].content)


def judged(prompt: Turns, answers: tuple[str, str], winner: int | None, means: Means) -> Example:
    """A pair with the index of the preferred answer; None: a tie."""
    better, safer = (winner if means in (name, "both") else None for name in ("helpful", "harmless"))
    return Example(prompt, (Answer(answers[0]), Answer(answers[1])), better, safer)


def without_prompt_again(example: Example, texts: Sequence[str]) -> Example:
    """The answers without the prompt, where all of them begin with it. `texts`: the prompt as its columns write it."""
    beginnings = [text.strip() for text in (*texts, example.prompt[-1].content) if _is_telling(text)]
    system = example.prompt[0].content if example.prompt[0].role == "system" else ""
    replies = [(system and _behind(answer.text, system.strip())) or answer.text for answer in example.answers]
    for beginning in beginnings:
        tails = [_behind(text, beginning) for text in replies]
        if tails and all(tails):
            answers = (replace(answer, text=str(tail)) for answer, tail in zip(example.answers, tails, strict=True))
            return replace(example, answers=tuple(answers))
    return example


def _is_telling(text: str) -> bool:
    """Whether a text is long enough that an answer does not begin with it by chance."""
    return len(text.split()) >= WORDS or (not text.isascii() and len(text.strip()) >= 2 * WORDS)


def _behind(answer: str, beginning: str) -> str | None:
    """The rest of an answer that begins with the prompt, perhaps after a label and in another case or spacing; None
    where it does not, or where nothing follows."""
    words = beginning.casefold().split()
    if words[0] not in answer.lstrip()[: len(words[0]) + 64].casefold():
        return None
    for pattern in (transcripts.SPEAKER, transcripts.LABEL):
        text = (pattern.sub("", answer) if pattern is transcripts.LABEL else answer).lstrip()
        matches = list(islice(re.finditer(r"\S+", text), len(words)))
        is_same = [word[0].casefold() for word in matches] == words
        end = len(beginning) if text.startswith(beginning) else matches[-1].end() if is_same else len(text)
        tail = text[end:]
        if tail.strip() and not (tail[0].isalnum() and beginning[-1].isalnum()):
            return transcripts.reply_of(pattern.sub("", tail))
    return None
