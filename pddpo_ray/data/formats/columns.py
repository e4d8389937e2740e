"""The names of columns that every reader shares, a row under those names, and which of its columns were read."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pddpo_ray.data.checks.problems import RowError

QUESTIONS = ("prompt", "instruction", "question", "query")
"""What is asked; the first that a row has. Without one it is `input`, a dialogue, `context` or `history`."""
DIALOGUES = ("messages", "conversations", "conversation")
SYSTEM = ("system", "system_prompt", "system_message")
HEADS = (*QUESTIONS, "input", *DIALOGUES, "context", "history")
"""Every column that may be the question, in the order in which it is looked for."""
REPLIES = ("response", "output", "answer", "completion")
SAME = {
    "preferred_output": "chosen",
    "chosen_response": "chosen",
    "non_preferred_output": "rejected",
    "rejected_response": "rejected",
    "rejected_messages": "rejected",
}
"""Other names of columns, with ours."""
PREFERRED = ("chosen", "rejected")
LEADS = (("better", "worse"), ("cheaper", "costlier"))
TOOLS = ("tool_calls", "tool_call", "tool_call_id", "function_call", "tools", "functions")
"""Columns and fields of a message about calls of tools, which no text here can hold."""
NESTED = ("fields", "data", "responses")
"""Objects of labelling tools: texts, and answers to questions."""
ARGUMENTS = "chat_template_kwargs"
WELL_KNOWN = frozenset((*HEADS, *SYSTEM, *REPLIES, *PREFERRED, *LEADS[0], *LEADS[1], *SAME, *TOOLS, ARGUMENTS))
"""Columns that are known whatever their case and the space around them."""
MEDIA = re.compile(
    r"(?i)(^|[^a-z])(image|img|picture|video|audio)s?([^a-z]?(urls?|paths?|files?|names?|ids?|bytes|b(ase)?64))?$"
)
"""Names of columns that hold media, or where they are."""

LABEL = re.compile(
    r"(?i)(^|[^a-z])(labels?|scores?|ratings?|rank(ing)?s?|preference|prefer(red)?|chosen|rejected|(is_?)?(un)?safe|"
    r"safety|safer|harm(ful|less)?|helpful(ness)?|toxic(ity)?|correct(ness)?|rewards?|margin|winner|votes?|verdict|"
    r"severity|better|worse|cheaper|costlier|thumbs?|quality|desirable|overall_preference|preference_strength)"
    r"([^a-z]|$)"
)
"""Names of columns that hold somebody's judgement."""
ORIGIN = re.compile(r"(?i)(^|[^a-z])(ids?|uuid|sources?|models?|sha256|md5|hash|status|users)$")
"""Ends of names that tell where something comes from."""
AN_ANSWER = re.compile(r"(?i)(answer|response|reply|replie|completion|output|reference|solution)s?$")
"""Ends of names of answers, which files of prompts do not need."""
SIDE = re.compile(r"(?i)chosen|rejected")
ABOUT = re.compile(
    r"(?i)(^|[^a-z])(category|categories|created(_at)?|updated(_at)?|inserted_at|dataset|date|domain|lang(uage)?|licen[cs]e|"
    r"meta(data)?|split|subset|tags?|time(stamp)?|type|url|version|annotators?)$"
)
"""Ends of names of facts about a row that are no part of its dialogue."""
EMPTY_JSON = ("[]", "{}", "null")
MISSING = ("nan", "<NA>", "NaT")
"""What pandas writes as text for a value that is missing."""
ABOUT_WORDS = 6
"""A longer value is text, whatever its column is called."""
MESSAGES_AS_TEXT = re.compile(r"\s*\[\s*\{\s*([\"'])(role|from|content|value)\1")


class ReadFields(Mapping[str, Any]):
    """A row that remembers which fields were read; `in` does not count as reading."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        value = self._row[name]
        self._read.add(name)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._row

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)

    def peek(self, name: str) -> Any:
        """The field's value or None, without having read it."""
        return self._row.get(name)

    def unread(self) -> list[str]:
        """Fields with a value that were not read."""
        unread = {name: value for name, value in self._row.items() if name not in self._read and not is_empty(value)}
        return [name for name, value in unread.items() if value not in EMPTY_JSON]

    def demand_read(self, prompt: Sequence[str], *, judged: bool = True) -> None:
        """RowError where a tool, a label or an answer (if `judged`), or a text that is not in `prompt` was not read."""
        unread = self.unread()
        refuse_tools(unread, "")
        media = next(
            (name for name in unread if MEDIA.search(name) and not isinstance(self._row[name], int | float)), None
        )
        if media is not None:
            raise RowError(
                "not-text", f"`{media}` is no text, and only text is read: leave it out on purpose (--ignore {media})"
            )
        if ARGUMENTS in unread:
            raise RowError(
                "unread-arguments",
                f"`{ARGUMENTS}` differs by row; one setting holds for a run (data.template_arguments): leave the field"
                f" out on purpose (--ignore {ARGUMENTS})",
            )
        if judged and (names := unread_labels(unread)):
            raise RowError(
                "unread-label",
                f"`{'`, `'.join(names)}` would be lost: name what the fields are (--column prompt=question), or leave"
                " them out on purpose (--ignore)",
            )
        names = [name for name in unread if self._is_lost_text(name, prompt) and (judged or not AN_ANSWER.search(name))]
        if names:
            raise RowError("unread-text", f"{self._loss_message(names)} ({self._remedy(names[0])})")

    def _is_lost_text(self, name: str, prompt: Sequence[str]) -> bool:
        value = self._row[name]
        if LABEL.search(name) or not holds_text(value) or is_about(name, value):
            return False
        return not (isinstance(value, str) and any(has_words(text, value) for text in prompt))

    def _loss_message(self, names: Sequence[str]) -> str:
        return f"the text of `{'`, `'.join(names)}` would be lost"

    def _remedy(self, name: str) -> str:
        value, ignore = self._row[name], f"leave it out on purpose: --ignore {name}"
        if isinstance(value, Mapping):
            return ignore
        has_turns = isinstance(value, list) and not isinstance(value[0], str)
        heads = [head for head in (("history",) if has_turns else ("context", "input")) if head not in self._row]
        return f"{f'part of the prompt: --column {heads[0]}={name}; or ' if heads else ''}{ignore}"

    def no_prompt(self) -> RowError:
        """The error for a row without a question."""
        texts = [name for name in self.unread() if self._is_lost_text(name, ())]
        choices = ", ".join(QUESTIONS)
        hint = f"name its field: --column prompt={texts[0]}" if texts else f"its field may be called {choices}"
        return RowError(
            "missing-field", f"there is no field with the prompt (words that answers share are none): {hint}"
        )


def unread_labels(unread: Iterable[str]) -> list[str]:
    """Those of the unread fields whose names say that they hold a judgement."""
    return [name for name in unread if LABEL.search(SIDE.sub("", name) if ORIGIN.search(name) else name)]


def refuse_tools(names: Sequence[str], where: str) -> None:
    """RowError where one of the fields holds calls of tools."""
    field = next((name for name in names if name in TOOLS), None)
    if field is not None:
        quoted = f"`{where}{field}`" + ("" if field == "tool_calls" else " (`tool_calls` and their like)")
        raise RowError(
            "tool-calls", f"{quoted}: calls of tools cannot be trained here, and a text alone would lose them"
        )


def is_empty(value: object) -> bool:
    return value is None or value in ("", [], {}) or (isinstance(value, str) and value.strip() in ("", *MISSING))


def holds_text(value: object) -> bool:
    """Whether a value contains words; a number or a flag that is written as text has none."""
    if isinstance(value, Mapping):
        return any(holds_text(item) for item in value.values())
    if isinstance(value, list):
        return any(holds_text(item) for item in value)
    return (
        isinstance(value, str) and re.search(r"[^\W\d_]", value) is not None and value.lower() not in ("true", "false")
    )


def is_about(name: str, value: object) -> bool:
    """Whether a column is a fact about the row rather than a part of its dialogue."""
    if re.fullmatch(r"(?i)meta(data)?", name):
        return True
    return bool(ORIGIN.search(name) or ABOUT.search(name)) and all(
        len(text.split()) <= ABOUT_WORDS for text in _texts(value)
    )


def has_words(text: str, words: str) -> bool:
    """Whether a text contains these words as they are, not as a part of longer ones."""
    return re.search(rf"(?<!\w){re.escape(words.strip())}(?!\w)", text) is not None


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def renamed(row: Mapping[str, Any], columns: Mapping[str, str], ignore: frozenset[str]) -> dict[str, Any]:
    """The row under our names: `columns` maps our names to theirs. Fields of `ignore` are left out. Both also hold
    among the texts of a labelling tool's record, and `ignore` among its questions."""
    our_names = {name: our_name for our_name, name in columns.items() if name in row}
    fields = {name: value for name, value in row.items() if name not in ignore and name not in our_names.values()}
    renamed_fields = {our_name: row[name] for name, our_name in our_names.items()}
    for nested in NESTED:
        if isinstance(fields.get(nested), Mapping):
            fields[nested] = renamed(fields[nested], {} if nested == "responses" else columns, ignore)
    return {name: value for name, value in fields.items() if name not in our_names} | renamed_fields


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row independent of its file's form: without the nulls that columns add inside of objects, messages in a text
    as a list, and well-known names as ours."""
    row = _with_known_names(row)
    result = {SAME.get(name, name) if SAME.get(name) not in row else name: _plain(value) for name, value in row.items()}
    turns = next((result[name] for name in DIALOGUES if isinstance(result.get(name), list)), None)
    if turns and "rejected" in result and "chosen" not in result:
        result["chosen"] = turns  # they end with the preferred reply
    return result


def _with_known_names(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with `Prompt`, `CHOSEN` and ` prompt` under the names in lower case, where nothing else has these."""
    our_names = _names(tuple(row))
    return row if our_names is None else {our_names[name]: value for name, value in row.items()}


@lru_cache(maxsize=256)
def _names(names: tuple[str, ...]) -> dict[str, str] | None:
    """Our name of every column; None where they are the same."""
    folded = {name: str(name).strip("\ufeff \t").lower() for name in names}
    counts = Counter(folded.values())
    our_names = {name: low if low in WELL_KNOWN and counts[low] == 1 else name for name, low in folded.items()}
    return None if all(name == our_name for name, our_name in our_names.items()) else our_names


def _plain(value: Any) -> Any:
    if isinstance(value, str) and MESSAGES_AS_TEXT.match(value):
        try:
            value = json.loads(value) if '"' in value[: value.index(":")] else ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return value
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, list) else value
