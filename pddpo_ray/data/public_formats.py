"""Formats of single public data sets and labelling tools: SHP, HelpSteer, KTO, ShareGPT, Argilla, Label Studio.

Labels that say something about one answer alone become safety labels or are refused; they are no preference.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pddpo_ray.data import fields
from pddpo_ray.data.example import Answer, Example
from pddpo_ray.data.problems import RowError, shown
from pddpo_ray.data.reading import ReadFields, unread_labels
from pddpo_ray.data.turns import Fields, Means, demand_turns, judged, preferred, prompt_of, with_system
from pddpo_ray.records import Message

GRADES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
"""What HelpSteer grades single answers by."""
HELPSTEER = (("response1", "response2", "overall_preference"), ("response_1", "response_2", "preference_strength"))
"""Two answers and how much the second is preferred, from -3 to 3: HelpSteer3 and HelpSteer2."""
QUESTIONS = ("prompt", "instruction", "question", "context", "input")
REPLY = re.compile(r"(?i)^(response|answer|reply|completion|output)[-_ ]?([012ab])$")
"""A field with one of two answers; what follows tells them apart."""
SIDES = {"left": 0, "right": 1}


def read_shp(row: Fields, means: Means) -> Example:
    """SHP: `labels` is 1 where A is preferred; the scores are votes."""
    answers = (fields.text(row, "human_ref_A"), fields.text(row, "human_ref_B"))
    first = fields.flag(row, "labels")
    votes = [row.get(name) for name in ("score_A", "score_B")]
    if first is not None and all(isinstance(vote, int | float) for vote in votes) and votes[0] != votes[1]:
        if first != (votes[0] > votes[1]):  # type: ignore[operator]
            raise RowError("labels-disagree", f"`labels` is {int(first)}, the votes are {votes[0]} and {votes[1]}")
        row.get("score_ratio")  # their quotient: nothing new
    return judged(_prompt(row, "history"), answers, None if first is None else 0 if first else 1, means)


def read_helpsteer(row: Fields, means: Means) -> Example:
    """HelpSteer's preferences: negative where the first answer is better, 0 for a tie."""
    names = next((names for names in HELPSTEER if names[0] in row), None)
    if names is None:
        raise RowError(
            "unpaired-label",
            f"grades of one answer ({', '.join(name for name in GRADES if name in row)}) are no preference: use the"
            " preference files of HelpSteer, or leave the grades out (--ignore)",
        )
    strength = row.get(names[2])
    if isinstance(strength, str) and strength.lstrip("-").isdigit():
        strength = int(strength)
    if isinstance(strength, bool) or not (strength is None or isinstance(strength, int | float)):
        raise RowError("wrong-type", f"`{names[2]}` is {shown(strength)}, not a number")
    winner = None if not strength else int(strength > 0)
    asked = "context" if "context" in row else "prompt"
    return judged(_prompt(row, asked), (fields.text(row, names[0]), fields.text(row, names[1])), winner, means)


def read_kto(row: Fields, means: Means) -> Example:
    """KTO: one completion that was called good or bad."""
    good = fields.flag(row, "label")
    if means == "helpful":
        raise RowError(
            "unpaired-label",
            "`label` says of one answer whether it is good: --means harmless reads it as safe or unsafe; a preference"
            " needs two answers",
        )
    return Example(_prompt(row, "prompt"), (Answer(_reply(row.get("completion"), "completion"), safe=good),))


def read_sharegpt(row: Fields, means: Means) -> Example:
    """ShareGPT turns with `chosen` and `rejected`, or a conversation that ends with a reply."""
    turns = list(fields.messages(row.get("conversations"), "conversations"))
    if "chosen" not in row and "rejected" not in row:
        return _ended_by_a_reply(row, turns, "conversations")
    demand_turns(turns, "conversations")
    sides = [_reply(row.get(name), name) for name in ("chosen", "rejected")]
    return preferred(with_system(row, tuple(turns)), sides[0], sides[1], means)


def read_conversation(row: Fields, means: Means) -> Example:
    """`messages` that end with a reply, as for supervised training."""
    return _ended_by_a_reply(row, list(fields.messages(row.get("messages"), "messages")), "messages")


def read_argilla(row: Fields, means: Means) -> Example:
    """Argilla's records, nested or flat: two replies among the fields and one question that chooses between them."""
    nested = isinstance(row.get("fields"), Mapping)
    texts: Fields = row["fields"] if nested else row
    replies = _replies(texts)
    asked = next((name for name in QUESTIONS if name in texts), None)
    if len(replies) != 2 or asked is None:
        raise RowError("missing-field", "there is no prompt with two replies among the fields")
    told = _chosen_by_question(row, replies)
    if len(told) > 1:
        raise RowError("unread-label", f"several questions choose between the replies: {', '.join(told)}")
    asked_too = row.get("responses") if nested else None
    lost = unread_labels(str(name) for name in asked_too or () if name not in told)
    if lost:
        raise RowError("unread-label", f"answers to `{'`, `'.join(lost)}` would be lost: leave them out (--ignore)")
    votes = next(iter(told.values()), [])
    both = (fields.text(texts, replies[0]), fields.text(texts, replies[1]))
    return judged(_prompt(texts, asked), both, _majority(votes), means)


def read_label_studio(row: Fields, means: Means) -> Example:
    """Label Studio's tasks with pairwise results: `left` is the first reply in `data`."""
    data = row.get("data")
    if not isinstance(data, Mapping):
        raise RowError("wrong-type", "`data` is not an object with the task's texts")
    replies = _replies(data)
    asked = next((name for name in QUESTIONS if name in data), None)
    if len(replies) != 2 or asked is None:
        raise RowError("missing-field", "there is no prompt with two replies in `data`")
    votes = []
    for annotation in row.get("annotations") or ():
        if not annotation.get("was_cancelled"):
            votes += [_side(result) for result in annotation.get("result") or ()]
    both = (fields.text(data, replies[0]), fields.text(data, replies[1]))
    return judged(_prompt(data, asked), both, _majority(votes), means)


def fits(row: Fields) -> str | None:
    """Name of the format here that a row has the fields of."""
    if {"human_ref_A", "human_ref_B"} & row.keys():
        return "shp"
    if any(set(names) <= row.keys() for names in HELPSTEER) or ("response" in row and set(GRADES) <= row.keys()):
        return "helpsteer"
    if {"completion", "label"} <= row.keys():
        return "kto"
    if isinstance(row.get("conversations"), list):
        return "sharegpt"
    if isinstance(row.get("data"), Mapping) and "annotations" in row:
        return "label-studio"
    nested = row.get("fields")
    texts: Fields = nested if isinstance(nested, Mapping) else row
    if len(_replies(texts)) == 2 and (nested is not None or _chosen_by_question(row, _replies(texts))):
        return "argilla"
    turns = row.get("messages")
    if isinstance(turns, list) and turns and isinstance(turns[-1], Mapping) and not {"chosen", "rejected"} & row.keys():
        return "conversation" if fields.ROLES.get(str(turns[-1].get("role"))) == "assistant" else None
    return None


def _prompt(row: Fields, name: str) -> tuple[Message, ...]:
    value = row.get(name)
    if not isinstance(value, list):
        return with_system(row, prompt_of(fields.text(row, name), name))
    turns = fields.messages(value, name)
    demand_turns(list(turns), name)
    return with_system(row, turns)


def _reply(value: object, name: str) -> str:
    """A reply as text, as a message, or as a list of one message."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, Mapping):
        (message,) = fields.messages([value], name)
        if message.role != "assistant":
            raise RowError("wrong-turns", f"`{name}` must be a message of the assistant")
        return message.content
    return fields.checked_text(value, name)


def _ended_by_a_reply(row: Fields, turns: list[Message], name: str) -> Example:
    if turns[-1].role != "assistant":
        raise RowError("wrong-turns", f"`{name}` must end with a reply of the assistant")
    demand_turns(turns[:-1], name)
    return Example(with_system(row, tuple(turns[:-1])), (Answer(turns[-1].content),))


def _replies(texts: Fields) -> list[str]:
    """Names of the fields with replies, in their order."""
    return sorted(name for name in texts if isinstance(name, str) and REPLY.match(name))


def _chosen_by_question(row: Fields, replies: Sequence[str]) -> dict[str, list[int | None]]:
    """The answers of every question that chooses between two replies. Columns of other questions are not read."""
    told: dict[str, list[int | None]] = {}
    nested = row.get("responses")
    if isinstance(nested, Mapping):
        columns = {str(name): value for name, value in nested.items()}
    else:
        columns = {str(name): value for name in row if isinstance(value := _peek(row, str(name)), list)}
    for name, value in columns.items():
        statuses = _peek(row, f"{name}.status")
        values = [_submitted(entry, index, statuses) for index, entry in enumerate(value or ())]
        chosen = [_index_of(entry, replies) for entry in values if entry is not None]
        if chosen and all(entry != REFUSED for entry in chosen):
            told[name] = chosen
            row.get(name), row.get(f"{name}.status")
    return told


def _peek(row: Fields, name: str) -> Any:
    """A field's value or None, which is not read by looking whether it is a choice."""
    return row.peek(name) if isinstance(row, ReadFields) else row.get(name)


REFUSED = -1
"""An answer that names no reply: its question asks something else."""


def _submitted(entry: object, index: int, statuses: object) -> object:
    """An annotator's value; None: not submitted."""
    if isinstance(entry, Mapping):
        return entry.get("value") if entry.get("status", "submitted") == "submitted" else None
    if isinstance(statuses, list) and index < len(statuses) and statuses[index] != "submitted":
        return None
    return entry


def _index_of(value: object, replies: Sequence[str]) -> int | None:
    """Which reply a value names: by its field, by what tells the fields apart, or None for a tie."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return REFUSED
    said = str(value).lower()
    if said in ("tie", "equal", "both"):
        return None
    for index, name in enumerate(replies):
        match = REPLY.match(name)
        assert match is not None
        if said in (name.lower(), match.group(2).lower()):
            return index
    return REFUSED


def _side(result: Mapping[str, Any]) -> int | None:
    if result.get("type") != "pairwise":
        raise RowError("unread-label", f"a result of type {shown(result.get('type'))} chooses between no replies")
    selected = (result.get("value") or {}).get("selected")
    if selected not in SIDES:
        raise RowError("label-out-of-range", f"`selected` is {shown(selected)}; it must be left or right")
    return SIDES[selected]


def _majority(votes: Sequence[int | None]) -> int | None:
    counts = Counter(votes)
    return None if counts[0] == counts[1] else int(counts[1] > counts[0])
