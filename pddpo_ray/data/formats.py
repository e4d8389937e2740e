"""The formats: how each is recognised, read into an Example, and written from one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pddpo_ray.data import fields, public_formats, transcripts
from pddpo_ray.data.example import Answer, Dimension, Example
from pddpo_ray.data.problems import RowError
from pddpo_ray.data.reading import ReadFields, demand_labels_read
from pddpo_ray.data.turns import (
    Fields,
    Means,
    demand_scores_agree,
    demand_turns,
    preferred,
    prompt_of,
    with_system,
)
from pddpo_ray.records import Message
from pddpo_ray.text.templates import TEMPLATES, as_dicts, rendered

Render = Callable[[tuple[Message, ...]], str]
"""The turns of a prompt as one text."""

QUESTIONS = ("prompt", "instruction", "question", "Question")
REPLIES = ("response", "output", "answer", "completion")
JUDGED = ("is_safe", "severity_level", "severity_category", "safety_category", "harm_category")
PREFERRED = ("chosen", "rejected")
LEADS = (("better", "worse"), ("cheaper", "costlier"))


@dataclass(frozen=True)
class Format:
    """A row with all fields of one of `marks` is a row of it; `strong`: and of no other."""

    name: str
    marks: tuple[tuple[str, ...], ...]
    read: Callable[[Fields, Means], Example]
    about: str
    strong: bool = True


# --- reading ---------------------------------------------------------------------------------------------------------


def read_pku(row: Fields, means: Means) -> Example:
    """PKU-SafeRLHF pairs of all versions: v0, 10K, 30K, single-dimension (one preference), and with severities."""
    prompt = fields.text(row, "prompt")
    answers = tuple(
        fields.answer(
            row,
            prompt=prompt,
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
    return Example(prompt_of(prompt, "prompt"), answers, fields.choice(row, "better_response_id"), safer)


def read_pku_qa(row: Fields, means: Means) -> Example:
    """One answer with safety labels: PKU-SafeRLHF-QA (both published layouts) and BeaverTails."""
    prompt = fields.text(row, "prompt")
    level = "severity_level" if "severity_level" in row else "severity_category"
    harm = next((name for name in ("harm_category", "category", "safety_category") if name in row), "harm_category")
    reply = fields.answer(
        row, prompt=prompt, response="response", safe="is_safe", harm=harm, level=level, digest="sha256"
    )
    if reply.safe is None and reply.severity is not None:
        reply = replace(reply, safe=reply.severity == 0)
    return Example(prompt_of(prompt, "prompt"), (reply,))


def read_hh(row: Fields, means: Means) -> Example:
    """HH-RLHF: two transcripts that agree up to the assistant's last turn."""
    chosen, rejected = (transcripts.turns(fields.text(row, name), name) for name in ("chosen", "rejected"))
    if chosen[:-1] != rejected[:-1]:
        raise RowError("different-prompts", "`chosen` and `rejected` differ before the last reply")
    replies = [
        fields.checked_text(turn[-1].content, name) for turn, name in ((chosen, "chosen"), (rejected, "rejected"))
    ]
    return preferred(tuple(chosen[:-1]), replies[0], replies[1], means)


def read_trl(row: Fields, means: Means) -> Example:
    """TRL preference, standard; without `prompt` the two texts share their beginning."""
    chosen, rejected = fields.text(row, "chosen"), fields.text(row, "rejected")
    demand_scores_agree(row)
    asked = next((name for name in QUESTIONS if name in row), None)
    if asked is not None:
        return preferred(with_system(row, prompt_of(fields.text(row, asked), asked)), chosen, rejected, means)
    shared = _shared_words(chosen, rejected)
    if not shared.strip():
        raise RowError("different-prompts", "there is no `prompt`, and `chosen` and `rejected` share no beginning")
    replies = [
        fields.checked_text(text[len(shared) :], name) for text, name in ((chosen, "chosen"), (rejected, "rejected"))
    ]
    return preferred(with_system(row, (Message("user", shared.strip()),)), replies[0], replies[1], means)


def read_trl_chat(row: Fields, means: Means) -> Example:
    """TRL preference, conversational; the prompt is a list, or the common beginning of the two conversations."""
    sides = [list(fields.messages(row.get(name), name)) for name in ("chosen", "rejected")]
    demand_scores_agree(row)
    asked = next((name for name in QUESTIONS if isinstance(row.get(name), str)), None)
    if isinstance(row.get("prompt"), list):
        prompt = list(fields.messages(row["prompt"], "prompt"))
        if any(len(side) != 1 for side in sides):
            raise RowError("wrong-turns", "`chosen` and `rejected` must be one reply each where there is a `prompt`")
    elif len(sides[0]) == 1 and asked is not None:
        prompt = list(prompt_of(fields.text(row, asked), asked))
    else:
        prompt = sides[0][:-1]
        if prompt != sides[1][:-1]:
            raise RowError("different-prompts", "`chosen` and `rejected` differ before the last reply")
    if any(side[-1].role != "assistant" for side in sides):
        raise RowError("wrong-turns", "a reply must be a message of the assistant")
    demand_turns(prompt, "prompt")
    return preferred(with_system(row, tuple(prompt)), sides[0][-1].content, sides[1][-1].content, means)


def read_pairs(row: Fields, means: Means) -> Example:
    """Plain pairs: `better`/`worse` by helpfulness, or `cheaper`/`costlier` by harm; the names say which."""
    told = (names for names in LEADS if row.get(names[0]) is not None or row.get(names[1]) is not None)
    first, second = next(told, LEADS[0])
    dimension: Means = "helpful" if first == "better" else "harmless"
    prompt = prompt_of(fields.text(row, "prompt"), "prompt")
    return preferred(prompt, fields.text(row, first), fields.text(row, second), dimension)


def read_answers(row: Fields, means: Means) -> Example:
    """Instruction and response without a judgement."""
    asked = next(name for name in QUESTIONS if name in row)
    replied = next(name for name in REPLIES if name in row)
    question = fields.text(row, asked)
    if asked == "instruction" and isinstance(row.get("input"), str) and row["input"].strip():
        question = f"{question}\n\n{row['input']}"  # Alpaca's second half of the question
    return Example(with_system(row, prompt_of(question, asked)), (Answer(fields.text(row, replied)),))


def read_prompts(row: Fields, means: Means) -> Example:
    """Questions alone, each with its `category` where the row names one."""
    category = row.get("category")
    if category is not None and (not isinstance(category, str) or not category.strip()):
        raise RowError("wrong-type", f"`category` is {category!r}, not the name of a group of prompts")
    if isinstance(row.get("messages"), list) or isinstance(row.get("prompt"), list):
        name = "messages" if isinstance(row.get("messages"), list) else "prompt"
        turns = fields.messages(row[name], name)
        demand_turns(list(turns), name)
        return Example(turns, category=category)
    asked = next((name for name in QUESTIONS if name in row), "prompt")
    return Example(with_system(row, prompt_of(fields.text(row, asked), asked)), category=category)


FORMATS = {
    form.name: form
    for form in (
        Format("pku", (("prompt", "response_0", "response_1"),), read_pku, "PKU-SafeRLHF pairs, all versions"),
        Format("pku-qa", (("prompt", "response"),), read_pku_qa, "PKU-SafeRLHF-QA and BeaverTails: one answer"),
        Format("hh", (PREFERRED,), read_hh, "HH-RLHF transcripts"),
        Format("trl", (PREFERRED,), read_trl, "TRL preference, standard"),
        Format("trl-chat", (PREFERRED,), read_trl_chat, "TRL preference, conversational"),
        Format("pairs", LEADS, read_pairs, "prompt, better, worse (or cheaper, costlier)"),
        Format(
            "shp", (("history", "human_ref_A", "human_ref_B"),), public_formats.read_shp, "SHP: two replies and votes"
        ),
        Format("helpsteer", (), public_formats.read_helpsteer, "HelpSteer2 and HelpSteer3 preferences"),
        Format("kto", (("prompt", "completion", "label"),), public_formats.read_kto, "KTO: one answer, good or bad"),
        Format("sharegpt", (("conversations",),), public_formats.read_sharegpt, "ShareGPT turns, with a pair or alone"),
        Format("conversation", (("messages",),), public_formats.read_conversation, "messages that end with a reply"),
        Format("argilla", (), public_formats.read_argilla, "Argilla records, nested or flat"),
        Format("label-studio", (("data", "annotations"),), public_formats.read_label_studio, "Label Studio, pairwise"),
        Format("answers", (), read_answers, "instruction and response", strong=False),
        Format("prompts", (), read_prompts, "prompts alone", strong=False),
    )
}


def recognise(row: Fields) -> Format | None:
    """The most telling format that a row has the fields of."""
    public = public_formats.fits(row)
    if public is not None:
        return FORMATS[public]
    if {"response_0", "response_1"} & row.keys():
        return FORMATS["pku"]
    if "response" in row and (any(name in row for name in JUDGED) or isinstance(row.get("category"), Mapping)):
        return FORMATS["pku-qa"]
    if {"chosen", "rejected"} & row.keys():
        told = [row[name] for name in ("chosen", "rejected") if row.get(name) is not None]
        if any(isinstance(value, list) for value in told):
            return FORMATS["trl-chat"]
        if "prompt" not in row and any(transcripts.is_transcript(value) for value in told):
            return FORMATS["hh"]
        return FORMATS["trl"] if told else None
    if any(set(names) & row.keys() for names in LEADS):
        return FORMATS["pairs"]
    if any(name in row for name in QUESTIONS):
        return FORMATS["answers"] if any(name in row for name in REPLIES) else FORMATS["prompts"]
    return FORMATS["prompts"] if isinstance(row.get("messages"), list) else None


def read_row(row: Fields, form: Format, means: Means, *, judged: bool = True) -> Example:
    """The row as an Example, with all of its judgements if `judged`. RowError says why it cannot be one."""
    other = recognise(row)
    if other is not None and other is not form and other.strong and _is_other(row, form, other):
        raise RowError("mixed-formats", f"the row is {other.about}; the file is {form.about}")
    watched = ReadFields(row)
    try:
        example = form.read(watched, means)
    except StopIteration:
        raise RowError("missing-field", f"there is none of the fields {', '.join(QUESTIONS + REPLIES)}") from None
    if len(example.answers) == 2 and example.answers[0].text.strip() == example.answers[1].text.strip():
        raise RowError("equal-responses", "both responses are the same text")
    identity = fields.identity(watched)
    if judged:
        demand_labels_read(watched.unread())
    return replace(example, id=identity, unread=tuple(watched.unread()))


def _shared_words(one: str, other: str) -> str:
    """The common beginning of two texts, up to the end of its last whole word."""
    length = next(
        (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    return one[: max((match.end() for match in re.finditer(r"\s", one[:length])), default=0)]


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
    """The example as rows of format `name`; `prompt` renders its turns. None where it says nothing in that form.

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
    return [] if label is None else [row | _write_preferred(example, label, name, dimension, prompt)]


def _write_preferred(example: Example, label: int, name: str, dimension: Dimension, prompt: Render) -> dict[str, Any]:
    chosen, rejected = example.answers[label].text, example.answers[1 - label].text
    match name:
        case "hh":
            opening = rendered(TEMPLATES["hh"], example.prompt)
            return {"chosen": f"{opening} {chosen}", "rejected": f"{opening} {rejected}"}
        case "trl-chat":
            said = as_dicts(example.prompt)
            replies = [[{"role": "assistant", "content": reply}] for reply in (chosen, rejected)]
            return {"prompt": said, "chosen": replies[0], "rejected": replies[1]}
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
    """One answer; those of a pair share its id, with their place behind it."""
    reply, several = example.answers[index], len(example.answers) > 1
    row = {} if example.id is None else {"id": f"{example.id}-{index}" if several else example.id}
    said = {"prompt": prompt(example.prompt), "response": reply.text, "is_safe": reply.safe}
    return {**row, **said, "severity_level": reply.severity, "harm_category": _published(reply)}


def _write_pku(example: Example) -> dict[str, Any]:
    numbered = list(enumerate(example.answers))
    return {
        **{f"response_{index}": reply.text for index, reply in numbered},
        **{f"is_response_{index}_safe": reply.safe for index, reply in numbered},
        **{f"response_{index}_harm_category": _published(reply) for index, reply in numbered},
        **{f"response_{index}_severity_level": reply.severity for index, reply in numbered},
        "better_response_id": example.better,
        "safer_response_id": example.safer,
    }


def _published(reply: Answer) -> dict[str, bool] | None:
    """The categories in the published form; names that PKU-SafeRLHF does not have cannot be said in it."""
    known = [name for name in reply.categories if name in PKU_CATEGORIES]
    return {name: name in known for name in PKU_CATEGORIES} if known or reply.safe else None
