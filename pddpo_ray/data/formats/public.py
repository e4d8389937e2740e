"""Formats of single public data sets and labelling tools: SHP, HelpSteer, KTO, ratings, Argilla, Label Studio.

Labels that say something about one answer alone become safety labels or are refused; they are no preference.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pddpo_ray.data.checks.problems import RowError, shown
from pddpo_ray.data.formats import fields
from pddpo_ray.data.formats.columns import DIALOGUES, HEADS, REPLIES, SYSTEM, ReadFields, unread_labels
from pddpo_ray.data.formats.dialogue import Means, ends_with_reply, judged, prompt_of, side
from pddpo_ray.data.formats.example import Answer, Example
from pddpo_ray.data.formats.fields import Fields

GRADES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
"""What HelpSteer grades single answers by."""
HELPSTEER = (("response1", "response2", "overall_preference"), ("response_1", "response_2", "preference_strength"))
"""Two answers and how much the second is preferred, from -3 to 3: HelpSteer3 and HelpSteer2."""
SEVERAL = ("completions", "responses", "answers", "outputs", "candidates", "generations")
"""Columns with a list of answers."""
ANSWER = "response|answer|reply|completion|output|option|model|assistant"
REPLY = re.compile(r"(?i)^(response|answer|reply|completion|output)[-_ ]?([012ab])$")
"""A field with one of two answers; what follows tells them apart."""
CHOICE = re.compile(
    rf"(?i)^(?:the )?(?:(?:{ANSWER})[-_ ]?)?([012ab]|first|second|left|right)(?: (?:one|{ANSWER}))?"
    r"(?: is)?(?: (?:much|slightly|clearly))?(?: (?:the )?(?:better|best|preferred))?(?: (?:one|answer|response))?\.?$"
)
"""How people and tools name one of two answers."""
CHOOSES = re.compile(r"(?i)comparison|choice|choose|chose|pairwise|pick|select|which|best")
"""Names of columns with a choice between two answers."""
SIDES = {"left": 0, "first": 0, "right": 1, "second": 1}
TIES = ("tie", "equal", "both", "neither", "same", "none")
REFUSED = -1
"""A value that names no answer: its question asks something else."""

Votes = list[int | None]


# --- two answers with a number ---------------------------------------------------------------------------------------


def read_shp(row: ReadFields, means: Means) -> Example:
    """SHP: `labels` is 1 where A is preferred; the scores are votes, and equal ones a tie."""
    answers = (fields.text(row, "human_ref_A"), fields.text(row, "human_ref_B"))
    first = fields.flag(row, "labels")
    votes = [fields.number(row.get(name), name) for name in ("score_A", "score_B")]
    row.get("score_ratio")  # marks it as read: the quotient of the two
    if votes[0] is not None and votes[1] is not None and first is not None:
        if votes[0] == votes[1]:
            first = None
        elif first != (votes[0] > votes[1]):
            raise RowError("labels-disagree", f"`labels` is {int(first)}, the votes are {votes[0]:g} and {votes[1]:g}")
    return judged(prompt_of(row), answers, None if first is None else 0 if first else 1, means)


def read_helpsteer(row: ReadFields, means: Means) -> Example:
    """HelpSteer's preferences: negative where the first answer is better, 0 for a tie."""
    names = next((names for names in HELPSTEER if names[0] in row), None)
    if names is None:
        raise RowError(
            "unpaired-label",
            f"grades of one answer ({', '.join(name for name in GRADES if name in row)}) are no preference: use the"
            " preference files of HelpSteer, or leave the grades out (--ignore)",
        )
    strength = fields.number(row.get(names[2]), names[2])
    for name in row:
        if "preference" in name:
            row[name]  # marks it as read: the one number sums it up
    winner = None if not strength else int(strength > 0)
    return judged(prompt_of(row), (fields.text(row, names[0]), fields.text(row, names[1])), winner, means)


def read_kto(row: ReadFields, means: Means) -> Example:
    """KTO: one completion that was called good or bad."""
    good = fields.flag(row, "label")
    if means == "helpful":
        raise RowError(
            "unpaired-label",
            "`label` says of one answer whether it is good: --means harmless reads it as safe or unsafe; a preference"
            " needs two answers",
        )
    turns = side(row, "completion")
    return Example(prompt_of(row, turns[:-1], but=("completion",)), (Answer(turns[-1].content, safe=good),))


# --- several answers, each with a rating ------------------------------------------------------------------------------


def read_ratings(row: ReadFields, means: Means) -> Example:
    """Several answers with a rating or a rank each: the pair is the best and the worst, the first of equals; a tie
    where all are equal. RowError where there is no rating, or more than one."""
    name = several_answers(row)
    assert name is not None
    entries = row[name]
    texts = [_entry_text(entry, f"{name}[{index}]") for index, entry in enumerate(entries)]
    key, ratings = _ratings(row, name, entries)
    if len(texts) < 2:
        raise RowError("unpaired-label", f"`{name}` holds one answer with a rating; a preference needs two answers")
    signs = [-rating if "rank" in key.lower() else rating for rating in ratings]
    best, worst = signs.index(max(signs)), signs.index(min(signs))
    tie = best == worst
    second = 1 if tie else worst
    return judged(prompt_of(row, but=(name,)), (texts[best], texts[second]), None if tie else 0, means)


def several_answers(row: Fields) -> str | None:
    """The column that holds a list of answers."""
    for name in SEVERAL:
        entries = row.peek(name) if isinstance(row, ReadFields) else row.get(name)
        if isinstance(entries, list) and entries and all(_entry_key(entry) is not None for entry in entries):
            return name
    return None


def _entry_key(entry: object) -> str | None:
    """The key of an entry's text; empty: the entry is the text."""
    if isinstance(entry, str):
        return ""
    text_fields = (*REPLIES, "text", "content")
    return next((name for name in text_fields if name in entry), None) if isinstance(entry, Mapping) else None


def _entry_text(entry: Any, name: str) -> str:
    key = _entry_key(entry)
    return fields.checked_text(entry, name) if not key else side(entry, key)[-1].content


def _ratings(row: ReadFields, name: str, entries: Sequence[Any]) -> tuple[str, list[float]]:
    """Name and values of the one rating of every answer, from the entries or from a list beside them."""
    candidates: dict[str, list[Any]] = {}
    entry_keys = [set(entry) for entry in entries if isinstance(entry, Mapping)]
    for key in sorted(set.intersection(*entry_keys)) if len(entry_keys) == len(entries) else ():
        candidates[key] = [entry[key] for entry in entries]
    for key in row:
        if key != name and isinstance(row.peek(key), list) and len(row.peek(key)) == len(entries):
            candidates[key] = row.peek(key)
    ratings = {key: values for key, values in candidates.items() if unread_labels([key]) and _are_numbers(values)}
    overall = [key for key in ratings if "overall" in key.lower()]
    chosen = overall if len(overall) == 1 else list(ratings)
    if len(chosen) != 1:
        fault = f"the ratings {', '.join(chosen)}: leave out all but one" if chosen else "no rating of each as a number"
        raise RowError("ratings", f"`{name}` holds several answers, and there is {fault}; or write pairs of them")
    if chosen[0] in row:
        row[chosen[0]]
    return chosen[0], [fields.number(value, chosen[0]) or 0.0 for value in ratings[chosen[0]]]


def _are_numbers(values: Sequence[Any]) -> bool:
    try:
        return all(fields.number(value, "") is not None for value in values)
    except RowError:
        return False


# --- two answers and a choice ----------------------------------------------------------------------------------------


def read_choice(row: ReadFields, means: Means) -> Example:
    """Two answers and a question that chooses between them: Argilla's records, nested or flat, and Label Studio's small
    exports."""
    nested = isinstance(row.peek("fields"), Mapping)
    texts = _texts(row, "fields") if nested else row
    replies = _replies(texts)
    if len(replies) != 2:
        raise RowError("missing-field", "there is no prompt with two replies among the fields")
    questions = _nested_questions(row.get("responses")) if nested else _columns(row, replies)
    if nested:
        row.get("suggestions"), row.get("vectors")  # marks as read: a model's, no person's
    example = judged(prompt_of(texts, but=replies), _both(texts, replies), _majority_choice(questions, replies), means)
    if nested:
        texts.demand_read([turn.content for turn in example.prompt])
    return example


def read_label_studio(row: ReadFields, means: Means) -> Example:
    """Label Studio's tasks with pairwise results or choices: `left` is the first reply in `data`."""
    if not isinstance(row.peek("data"), Mapping):
        raise RowError("wrong-type", "`data` is not an object with the task's texts")
    texts = _texts(row, "data")
    replies = _replies(texts)
    if len(replies) != 2:
        raise RowError("missing-field", "there is no prompt with two replies in `data`")
    questions: dict[str, list[Any]] = {}
    for annotation in row["annotations"] or ():
        for result in () if annotation.get("was_cancelled") else annotation.get("result") or ():
            questions.setdefault(str(result.get("from_name", "annotations")), []).append(_selection(result))
    row.get("predictions")  # marks as read: a model's, no person's
    example = judged(prompt_of(texts, but=replies), _both(texts, replies), _majority_choice(questions, replies), means)
    texts.demand_read([turn.content for turn in example.prompt])
    return example


def has_two_answers(row: Fields) -> bool:
    return len(_replies(row)) == 2


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
    if isinstance(row.get("fields"), Mapping):
        return "argilla" if has_two_answers(row["fields"]) else None
    if has_two_answers(row) and _columns(ReadFields(row), _replies(row)):
        return "argilla"
    if several_answers(row) is not None and not {"chosen", "rejected"} & row.keys():
        return "ratings"
    turns = next((row[name] for name in DIALOGUES if isinstance(row.get(name), list)), None)
    return "conversation" if ends_with_reply(turns) and not {"chosen", "rejected"} & row.keys() else None


def _texts(row: ReadFields, name: str) -> ReadFields:
    """A record's texts: its object `name`, with the row's prompt and system columns."""
    shared_fields = {key: row[key] for key in (*HEADS, *SYSTEM) if key in row}
    return ReadFields({**shared_fields, **row[name]})


def _both(texts: Fields, replies: Sequence[str]) -> tuple[str, str]:
    return side(texts, replies[0])[-1].content, side(texts, replies[1])[-1].content


def _replies(texts: Fields) -> list[str]:
    """Names of the fields with replies, in their order."""
    return sorted(name for name in texts if isinstance(name, str) and REPLY.match(name))


def _nested_questions(responses: Any) -> dict[str, list[Any]]:
    """People's submitted values by question: `{question: [value]}`, or a list with the values of each person."""
    if isinstance(responses, Mapping):
        return {str(name): _submitted_values(entries or (), None) for name, entries in responses.items()}
    questions: dict[str, list[Any]] = {}
    for person in responses or ():
        if isinstance(person, Mapping) and person.get("status", "submitted") == "submitted":
            for name, entry in (person.get("values") or {}).items():
                questions.setdefault(str(name), []).append(entry.get("value") if isinstance(entry, Mapping) else entry)
    return questions


def _columns(row: ReadFields, replies: Sequence[str]) -> dict[str, list[Any]]:
    """The columns of a flat record that choose between its replies; those of other questions are not read."""
    questions: dict[str, list[Any]] = {}
    exported = "annotation_id" in row
    for name in map(str, row):
        value = row.peek(name)
        by_name = bool(unread_labels([name]) or CHOOSES.search(name)) or isinstance(value, list)
        of_reply = any(reply in name for reply in replies) or ".suggestion" in name
        if of_reply or not (by_name or (exported and isinstance(value, str))):
            continue
        values = _submitted_values(value if isinstance(value, list) else [value], row.peek(f"{name}.status"))
        choices = [_index_of(entry, replies, by_name=by_name) for entry in values]
        if choices and REFUSED not in choices:
            questions[name] = values
    for name in questions:
        stem = name.removesuffix(".responses")
        for other in row:
            if other == name or other.startswith(f"{stem}."):
                row[other]
    return questions


def _submitted_values(entries: Sequence[Any], statuses: object) -> list[Any]:
    """The submitted values, without drafts and discarded answers."""
    values = []
    for index, entry in enumerate(entries):
        status = statuses[index] if isinstance(statuses, list) and index < len(statuses) else "submitted"
        if isinstance(entry, Mapping):
            status, entry = entry.get("status", status), entry.get("value")
        if status == "submitted" and entry is not None:
            values.append(entry)
    return values


def _majority_choice(questions: Mapping[str, list[Any]], replies: Sequence[str]) -> int | None:
    """The answer that most people chose; None without a majority. RowError where a question's answers would be lost."""
    decisions: dict[str, Votes] = {}
    for name, values in questions.items():
        votes = [_index_of(value, replies) for value in values]
        if REFUSED in votes:
            value = shown(values[votes.index(REFUSED)])
            raise RowError(
                "unread-label",
                f"answers to `{name}` would be lost: {value} names none of `{'`, `'.join(replies)}`; leave the question"
                f" out on purpose (--ignore {name})",
            )
        if votes:
            decisions[name] = [None if vote is None else int(vote) for vote in votes]
    if len(decisions) > 1:
        raise RowError("unread-label", f"several questions choose between the replies: {', '.join(decisions)}")
    counts = Counter(next(iter(decisions.values()), []))
    return None if counts[0] == counts[1] else int(counts[1] > counts[0])


def _index_of(value: object, replies: Sequence[str], *, by_name: bool = True) -> int | None:
    """Which reply a value names, None for a tie, REFUSED for neither. A mere letter or digit counts in a column
    whose name says that it holds a judgement (`by_name`)."""
    if isinstance(value, list) and len(value) == 2:
        return _first_of(value, replies)
    if not isinstance(value, str | int) or isinstance(value, bool):
        return REFUSED
    choice = str(value).strip().lower()
    if choice in TIES:
        return None if by_name or choice == "tie" else REFUSED
    if choice in (name.lower() for name in replies):
        return [name.lower() for name in replies].index(choice)
    match = CHOICE.match(choice)
    if match is None or (len(choice) == 1 and not by_name):
        return REFUSED
    if match[1] in SIDES:
        return SIDES[match[1]]
    ends = [str(REPLY.match(name)[2]).lower() for name in replies]  # type: ignore[index]
    return ends.index(match[1]) if match[1] in ends else REFUSED


def _first_of(ranking: Sequence[Any], replies: Sequence[str]) -> int | None:
    """The reply that an Argilla ranking puts first: names in order, or each with its rank; None for equal ranks."""
    ranks = [entry.get("rank", at) if isinstance(entry, Mapping) else at for at, entry in enumerate(ranking)]
    names = [entry.get("value") if isinstance(entry, Mapping) else entry for entry in ranking]
    if {_index_of(name, replies) for name in names} != {0, 1} or not _are_numbers(ranks):
        return REFUSED
    return None if ranks[0] == ranks[1] else _index_of(names[ranks.index(min(ranks))], replies)


def _selection(result: Mapping[str, Any]) -> object:
    """What a result of Label Studio selects."""
    value = result.get("value") or {}
    if result.get("type") == "choices" and len(value.get("choices") or ()) == 1:
        return value["choices"][0]
    if result.get("type") != "pairwise":
        raise RowError("unread-label", f"a result of type {shown(result.get('type'))} chooses between no replies")
    if value.get("selected") not in ("left", "right"):
        raise RowError("label-out-of-range", f"`selected` is {shown(value.get('selected'))}; it must be left or right")
    return value["selected"]
