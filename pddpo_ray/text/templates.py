"""Chat templates: from the turns of a conversation to one text. The named ones are Jinja, like a model's own.

Each writes the beginning of sequence once, if there is one, and after the assistant's last turn the end of sequence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache
from types import MappingProxyType
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.records import Message

OF_TOKENIZER = "tokenizer"
ELSE = "tokenizer-or-"
"""`tokenizer-or-plain`: the tokenizer's own template, or `plain` where it has none."""
OF_VERSION = "tokenizer-or-plain"
"""A stored version's: it carries what its run was trained with, arguments included."""
NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})

TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
DAY = date(2024, 7, 26)
"""The date that templates write instead of today's: a resumed run and the endpoint get the same prompts."""

_ASKED = (
    "{% set answered = messages[-1]['role'] == 'assistant' %}{% set asked = messages[:-1] if answered else messages %}"
)
_BEGIN = _ASKED + "{{ bos_token or '' }}"
_TURNS = (
    "{% set opening = namespace(system='') %}{% for turn in asked %}"
    "{% if turn['role'] == 'system' %}{% set opening.system = turn['content'] ~ '\\n\\n' %}{% else %}"
    "{{ '\\n\\n' ~ ('Assistant: ' if turn['role'] == 'assistant' else 'Human: ') ~ opening.system ~ turn['content'] }}"
    "{% set opening.system = '' %}{% endif %}{% endfor %}{{ '\\n\\nAssistant:' }}"
)
_QUESTION = "{% if asked | length == 1 %}{{ asked[0]['content'] }}{% else %}" + _TURNS + "{% endif %}"
_ANSWER = "{% if answered %}{{ messages[-1]['content'] ~ (eos_token or '') }}{% endif %}"
_SPACE = "{{ ' ' if answered else '' }}"

TEMPLATES = {
    # A single question as it is; longer dialogues as a transcript.
    "plain": _BEGIN + _QUESTION + _SPACE + _ANSWER,
    # Dialogues as HH-RLHF writes them. A system message opens the first human turn.
    "hh": _BEGIN + _TURNS + _SPACE + _ANSWER,
    # The Beaver models': one line, roles in capitals.
    "safe-rlhf": _BEGIN
    + "{{ 'BEGINNING OF CONVERSATION: ' }}{% for turn in asked %}"
    + "{{ 'ASSISTANT: ' ~ turn['content'] ~ (eos_token or '</s>') if turn['role'] == 'assistant'"
    + " else 'USER: ' ~ turn['content'] }}{{ ' ' }}{% endfor %}{{ 'ASSISTANT:' }}"
    + _SPACE
    + _ANSWER,
    # Instruction and response under headings; earlier turns go into the instruction.
    "alpaca": _BEGIN + "{{ '### Instruction:\\n' }}" + _QUESTION + "{{ '\\n\\n### Response:\\n' }}" + _ANSWER,
    # Each turn between marks. The first mark may itself be the beginning of sequence.
    "chatml": _ASKED
    + "{{ bos_token if bos_token and bos_token != '<|im_start|>' else '' }}{% for turn in asked %}"
    + "{{ '<|im_start|>' ~ turn['role'] ~ '\\n' ~ turn['content'] ~ '<|im_end|>\\n' }}{% endfor %}"
    + "{{ '<|im_start|>assistant\\n' }}"
    + _ANSWER,
}


def template_named(name: str, tokenizer: Any | None = None, arguments: Mapping[str, Any] = NO_ARGUMENTS) -> str:
    """The Jinja text of a named template, or of the tokenizer's own, with its arguments set.

    UserError for an unknown or a missing one, and for an argument that it does not take.
    """
    family, _, variant = name.partition(":")
    base_name = family.removeprefix(ELSE)
    if (base_name not in TEMPLATES or variant) and family != OF_TOKENIZER:
        choices = ", ".join([*TEMPLATES, OF_TOKENIZER, f"{OF_TOKENIZER}:NAME", f"{ELSE}NAME"])
        raise UserError(f"there is no chat template {name!r}: use {choices}")
    chat_template = getattr(tokenizer, "chat_template", None)
    if family == OF_TOKENIZER and not chat_template:
        reason = "this template comes with a model" if tokenizer is None else "this model has no chat template"
        raise UserError(f"chat template {name!r}: {reason}; choose {', '.join(TEMPLATES)}")
    if tokenizer is None or not chat_template or base_name == family != OF_TOKENIZER:
        return with_arguments(TEMPLATES[base_name], arguments)
    dated_template = TODAY.sub(lambda call: _literal(DAY.strftime(call[2])), _of_tokenizer(chat_template, variant))
    return with_arguments(dated_template, arguments)


def _of_tokenizer(jinja: str | Mapping[str, str], variant: str) -> str:
    """A tokenizer's only template, its default, or the one of its name."""
    templates = {"": jinja} if isinstance(jinja, str) else {**jinja, "": jinja.get("default", "")}
    if templates.get(variant):
        return templates[variant]
    names = sorted(name for name in templates if name)
    if not names:
        raise UserError(f"this model has one chat template, and none that is called {variant!r}: use {OF_TOKENIZER}")
    raise UserError(
        f"this model has the chat templates {', '.join(names)} and no {variant or 'default'}: choose one, for example"
        f" {OF_TOKENIZER}:{names[0]} (data.template, --template)"
    )


def with_arguments(template: str, arguments: Mapping[str, Any]) -> str:
    """A template that sets its arguments by itself: any program that renders it gets the same text.

    UserError for one that the template does not mention.
    """
    for name in arguments:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise UserError(f"the chat template takes no argument {name!r}: take it out of the template's arguments")
    settings = (f"{{% set {name} = {_literal(value)} %}}{{{{ '' }}}}" for name, value in arguments.items())
    return "".join(settings) + template


def _literal(value: Any) -> str:
    """A value of a recipe as Jinja writes it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(str(key))}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def rendered(template: str, messages: Sequence[Message]) -> str:
    """A named template's text without a tokenizer's marks for beginning and end of sequence.

    It waits for the assistant's reply unless the last turn is one.
    """
    return _jinja_template(template).render(messages=as_dicts(messages), add_generation_prompt=True)


@cache
def _jinja_template(template: str) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(template)


def as_dicts(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def for_reading(messages: Sequence[Message]) -> str:
    """What people and judges are shown: a single question as it is, longer dialogues with the speakers' names."""
    if len(messages) == 1:
        return messages[0].content
    return "\n\n".join(f"{message.role.capitalize()}: {message.content}" for message in messages)


MARKS = re.compile(
    r"<\|[^|<>\n]{1,40}\|>(?:(?:system|user|assistant)\n)?|\[/?INST\]|</?s>"
    r"|(?:^|\n)\s*(?:Human|Assistant|USER|ASSISTANT|### Instruction|### Response):"
)


def without_markup(answer: str) -> str:
    """An answer for reading, without marks of chat templates that its model wrote into it.

    without_markup("Soak it.<|im_end|>") = "Soak it."
    """
    return MARKS.sub("\n", answer).strip()
