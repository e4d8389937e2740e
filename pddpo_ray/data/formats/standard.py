"""The formats: how each is recognised, read into an Example, and written from one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pddpo_ray.data.checks.problems import RowError
from pddpo_ray.data.formats import dialogue, fields, transcripts
from pddpo_ray.data.formats import public as public_formats
from pddpo_ray.data.formats.columns import (
    DIALOGUES,
    HEADS,
    LEADS,
    PREFERRED,
    REPLIES,
    ReadFields,
    is_empty,
    plain,
    unread_labels,
)
from pddpo_ray.data.formats.dialogue import Means, judged, pair, prompt_of, side
from pddpo_ray.data.formats.example import Answer, Dimension, Example
from pddpo_ray.data.formats.fields import Fields
from pddpo_ray.records import Message
from pddpo_ray.text.templates import TEMPLATES, as_dicts, rendered

Render = Callable[[tuple[Message, ...]], str]
"""The turns of a prompt as one text."""

PKU_LABELS = ("better_response_id", "safer_response_id", "is_response_0_safe", "is_response_1_safe")
JUDGED = ("is_safe", "severity_level", "severity_category", "safety_category", "harm_category")


@dataclass(frozen=True)
class Format:
    """A row with all fields of one of `marks` has this format; `strong`: and no other."""

    name: str
    marks: tuple[tuple[str, ...], ...]
    read: Callable[[ReadFields, Means], Example]
    about: str
    strong: bool = True


# --- reading ---------------------------------------------------------------------------------------------------------


def read_pku(row: ReadFields, means: Means) -> Example:
    """PKU-SafeRLHF pairs of all versions: v0, 10K, 30K, single-dimension (one preference), and with severities."""
    prompt = prompt_of(row)
    answers = tuple(
        fields.answer(
            row,
            response=f"response_{index}",
            safe=f"is_response_{index}_safe",
            harm=f"response_{index}_harm_category",
            level=f"response_{index}_severity_level",
            digest=f"response_{index}_sha256",
        )
        for index in (0, 1)
    )
    safer = fields.choice(row, "safer_response_id")
    if safer is not None and answers[safer].safe is False and answers[1 - safer].safe is True:
        raise RowError("labels-disagree", f"`safer_response_id` is {safer}, but of the two only the other one is safe")
    return Example(prompt, answers, fields.choice(row, "better_response_id"), safer)


def read_pku_qa(row: ReadFields, means: Means) -> Example:
    """One answer with safety labels: PKU-SafeRLHF-QA (both published layouts) and BeaverTails."""
    prompt = prompt_of(row)
    level = "severity_level" if "severity_level" in row else "severity_category"
    harm = next((name for name in ("harm_category", "category", "safety_category") if name in row), "harm_category")
    reply = fields.answer(row, response="response", safe="is_safe", harm=harm, level=level, digest="sha256")
    if reply.safe is None and reply.severity is not None:
        reply = replace(reply, safe=reply.severity == 0)
    return Example(prompt, (reply,))


def read_pair(row: ReadFields, means: Means) -> Example:
    """An answer that somebody preferred to another one, each as a text, a transcript or messages. Scores beside them
    have to agree; equal ones are a tie."""
    leads = (names for names in LEADS if row.peek(names[0]) is not None or row.peek(names[1]) is not None)
    names = PREFERRED if set(PREFERRED) & row.keys() else next(leads, LEADS[0])
    if names in LEADS:
        means = "helpful" if names == LEADS[0] else "harmless"
    prompt, answers = pair(row, names)
    return judged(prompt, answers, None if _scores_tie(row, names) else 0, means)


def _scores_tie(row: ReadFields, names: tuple[str, str]) -> bool:
    """Whether the scores beside a preference are equal. RowError where they prefer the other answer."""
    ties = []
    for name in row:
        other = name.replace(*names)
        if other == name or other not in row or not unread_labels([name.replace(names[0], "")]):
            continue
        if any(isinstance(row.peek(column), list | Mapping) for column in (name, other)):
            continue
        high, low = fields.number(row[name], name), fields.number(row[other], other)
        if high is not None and low is not None:
            if high < low:
                raise RowError("labels-disagree", f"`{name}` is {high:g} and `{other}` is {low:g}")
            ties.append(high == low)
    return bool(ties) and all(ties)


def read_single(row: ReadFields, means: Means) -> Example:
    """An answer without a judgement, in a column of its own or as the last turn of a dialogue."""
    name = next((name for name in (*REPLIES, *DIALOGUES) if not is_empty(row.peek(name))), None)
    if name is None:
        raise RowError(
            "missing-field", f"there is none of the fields {', '.join((*REPLIES, *DIALOGUES))} with an answer"
        )
    turns = side(row, name)
    if name in DIALOGUES:
        dialogue.demand_turns(turns[:-1], f"{name} before its last reply")
    return Example(prompt_of(row, turns[:-1], but=(name,)), (Answer(turns[-1].content),))


def read_turns(row: ReadFields, means: Means) -> Example:
    """ShareGPT turns with `chosen` and `rejected`, or a conversation that ends with a reply."""
    return (read_pair if set(PREFERRED) & row.keys() else read_single)(row, means)


def read_prompts(row: ReadFields, means: Means) -> Example:
    """Questions alone, each with its `category` where the row names one."""
    category = row.get("category")
    if category is not None and (not isinstance(category, str) or not category.strip()):
        raise RowError("wrong-type", f"`category` is {category!r}, not the name of a group of prompts")
    return Example(prompt_of(row), category=category)


FORMATS = {
    form.name: form
    for form in (
        Format("pku", (("prompt", "response_0", "response_1"),), read_pku, "PKU-SafeRLHF pairs, all versions"),
        Format("pku-qa", (("prompt", "response"),), read_pku_qa, "PKU-SafeRLHF-QA and BeaverTails: one answer"),
        Format("hh", (PREFERRED,), read_pair, "HH-RLHF transcripts"),
        Format("trl", (PREFERRED,), read_pair, "TRL preference, standard"),
        Format("trl-chat", (PREFERRED,), read_pair, "TRL preference, conversational"),
        Format("pairs", LEADS, read_pair, "prompt, better, worse (or cheaper, costlier)"),
        Format("ratings", (), public_formats.read_ratings, "ratings of several answers: the pair is best and worst"),
        Format(
            "shp", (("history", "human_ref_A", "human_ref_B"),), public_formats.read_shp, "SHP: two replies and votes"
        ),
        Format("helpsteer", (), public_formats.read_helpsteer, "HelpSteer2 and HelpSteer3 preferences"),
        Format("kto", (("prompt", "completion", "label"),), public_formats.read_kto, "KTO: one answer, good or bad"),
        Format("sharegpt", (("conversations",),), read_turns, "ShareGPT turns, with a pair or alone"),
        Format("conversation", (("messages",),), read_single, "messages that end with a reply"),
        Format("argilla", (), public_formats.read_choice, "two answers and who chose which, as Argilla exports them"),
        Format("label-studio", (("data", "annotations"),), public_formats.read_label_studio, "Label Studio, pairwise"),
        Format("answers", (), read_single, "instruction and response", strong=False),
        Format("prompts", (), read_prompts, "prompts alone", strong=False),
    )
}


def recognise(row: Fields) -> Format | None:
    """The most specific format whose fields a row has."""
    return _format_of(plain(row))


def _format_of(row: Fields) -> Format | None:
    if {"response_0", "response_1"} & row.keys() and set(PKU_LABELS) & row.keys():
        return FORMATS["pku"]
    public = public_formats.fits(row)
    if public is not None:
        return FORMATS[public]
    if {"response_0", "response_1"} & row.keys():
        return FORMATS["pku"]
    if "response" in row and (any(name in row for name in JUDGED) or isinstance(row.get("category"), Mapping)):
        return FORMATS["pku-qa"]
    if set(PREFERRED) & row.keys():
        values = [row[name] for name in PREFERRED if row.get(name) is not None]
        if any(isinstance(value, list | Mapping) for value in values):
            return FORMATS["trl-chat"]
        if "prompt" not in row and any(isinstance(text, str) and transcripts.is_transcript(text) for text in values):
            return FORMATS["hh"]
        return FORMATS["trl"] if values else None
    if any(set(names) & row.keys() for names in LEADS):
        return FORMATS["pairs"]
    if public_formats.has_two_answers(row):
        return FORMATS["argilla"]
    if any(name in row for name in HEADS):
        return FORMATS["answers"] if any(name in row for name in REPLIES) else FORMATS["prompts"]
    return None


def read_row(row: Fields, form: Format, means: Means, *, judged: bool = True) -> Example:
    """The row as an Example, with all of its judgements if `judged`. RowError says why it cannot be one."""
    row = plain(row)
    other = _format_of(row)
    if other is not None and other is not form and other.strong and _is_other(row, form, other):
        raise RowError("mixed-formats", f"the row is {other.about}; the file is {form.about}")
    tracked_row = ReadFields(row)
    example = form.read(tracked_row, means)
    dialogue.refuse_media(example.prompt)
    dialogue.refuse_marks([turn.content for turn in example.prompt] + [answer.text for answer in example.answers])
    texts = [text for name in HEADS if isinstance(text := row.get(name), str)]
    example = dialogue.without_prompt_again(example, texts)
    if len(example.answers) == 2 and example.answers[0].text.rstrip() == example.answers[1].text.rstrip():
        raise RowError("equal-responses", "both responses are the same text")
    identity = fields.identity(tracked_row)
    tracked_row.demand_read([turn.content for turn in example.prompt], judged=judged)
    return replace(example, id=identity, unread=tuple(tracked_row.unread()))


def _is_other(row: Fields, form: Format, other: Format) -> bool:
    """Whether a row is of another format rather than a damaged one of the file's own."""
    if not form.strong or not any(set(names) <= row.keys() for names in form.marks):
        return True
    return form.marks == other.marks and "trl-chat" in (form.name, other.name)


# --- writing ---------------------------------------------------------------------------------------------------------

PKU_CATEGORIES = (
    "Endangering National Security", "Insulting Behavior", "Discriminatory Behavior", "Endangering Public Health",
    "Copyright Issues", "Violence", "Drugs", "Privacy Violation", "Economic Crime", "Mental Manipulation",
    "Human Trafficking", "Physical Harm", "Sexual Content", "Cybercrime", "Disrupting Public Order",
    "Environmental Damage", "Psychological Harm", "White-Collar Crime", "Animal Abuse",
)  # fmt: skip
"""The nineteen of PKU-SafeRLHF, under their published names."""

WRITABLE = ("pku", "pku-qa", "hh", "trl", "trl-chat", "pairs", "answers", "prompts")


def write_rows(example: Example, name: str, dimension: Dimension, prompt: Render) -> list[dict[str, Any]]:
    """The example as rows of format `name`; `prompt` renders its turns. No rows where that form cannot hold it.

    In formats that know one preference it is that of `dimension`; `pku-qa` has a row for each judged answer. Where the
    order of two answers says nothing (`pku`) it is drawn from their texts: else "the first is better" could be learned.
    """
    row: dict[str, Any] = {} if example.id is None else {"id": example.id}
    if name == "prompts":
        return [row | {"prompt": prompt(example.prompt)}]
    if name == "pku-qa":
        return [
            _write_qa(example, index, prompt) for index, reply in enumerate(example.answers) if reply.safe is not None
        ]
    if name == "answers":
        row["prompt"] = prompt(example.prompt)
        return [row | {"response": example.answers[0].text}] if len(example.answers) == 1 else []
    if len(example.answers) != 2:
        return []
    if name == "pku":
        return [row | {"prompt": prompt(example.prompt)} | _write_pku(shuffled(example))]
    label = example.label(dimension)
    return [] if label is None else [row | _write_preference(example, label, name, dimension, prompt)]


def _write_preference(example: Example, label: int, name: str, dimension: Dimension, prompt: Render) -> dict[str, Any]:
    chosen, rejected = example.answers[label].text, example.answers[1 - label].text
    match name:
        case "hh":
            opening = rendered(TEMPLATES["hh"], example.prompt)
            return {"chosen": f"{opening} {chosen}", "rejected": f"{opening} {rejected}"}
        case "trl-chat":
            turns = as_dicts(example.prompt)
            replies = [[{"role": "assistant", "content": reply}] for reply in (chosen, rejected)]
            return {"prompt": turns, "chosen": replies[0], "rejected": replies[1]}
        case "pairs":
            preferred, other = lead_of(dimension)
            return {"prompt": prompt(example.prompt), preferred: chosen, other: rejected}
        case _:
            return {"prompt": prompt(example.prompt), "chosen": chosen, "rejected": rejected}


def lead_of(dimension: Dimension) -> tuple[str, str]:
    """Names of the preferred and the other answer in plain pairs."""
    return LEADS[0] if dimension == "helpful" else LEADS[1]


def shuffled(example: Example) -> Example:
    """The answers in an order that depends on nothing but their texts."""
    first, second = example.answers
    digests = [hashlib.blake2b(answer.text.encode(), digest_size=8).digest() for answer in (first, second)]
    if digests[0] <= digests[1]:
        return example
    better, safer = (None if label is None else 1 - label for label in (example.better, example.safer))
    return replace(example, answers=(second, first), better=better, safer=safer)


def _write_qa(example: Example, index: int, prompt: Render) -> dict[str, Any]:
    """One answer; in a pair its id is the pair's with the answer's index at the end."""
    reply, several = example.answers[index], len(example.answers) > 1
    row = {} if example.id is None else {"id": f"{example.id}-{index}" if several else example.id}
    columns = {"prompt": prompt(example.prompt), "response": reply.text, "is_safe": reply.safe}
    return {**row, **columns, "severity_level": reply.severity, "harm_category": _published_categories(reply)}


def _write_pku(example: Example) -> dict[str, Any]:
    numbered = list(enumerate(example.answers))
    return {
        **{f"response_{index}": reply.text for index, reply in numbered},
        **{f"is_response_{index}_safe": reply.safe for index, reply in numbered},
        **{f"response_{index}_harm_category": _published_categories(reply) for index, reply in numbered},
        **{f"response_{index}_severity_level": reply.severity for index, reply in numbered},
        "better_response_id": example.better,
        "safer_response_id": example.safer,
    }


def _published_categories(reply: Answer) -> dict[str, bool] | None:
    """The categories in the published form, without names that PKU-SafeRLHF does not have."""
    categories = [name for name in reply.categories if name in PKU_CATEGORIES]
    return {name: name in categories for name in PKU_CATEGORIES} if categories or reply.safe else None
