"""One tokenizer with one template: the ids that are trained are the ids that the engine sees and would write.

A prompt's ids are those of the rendered turns up to where the assistant begins. An answer's ids are what the same
template adds to them when the assistant's turn is rendered too: a space in front only where the template writes one,
and at the end the token by which the model ends its turn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.records import Message
from pddpo_ray.text.templates import TEMPLATES, as_dicts, rendered, template_named

MARK = "violet"
"""A word that no template writes by itself."""
DAY = "26 Jul 2024"
"""The date that templates with a date write: a run that goes on tomorrow has the prompts of today."""


class Renderer:
    """Text and ids of conversations. `folder`: where the model's configuration says which tokens end an answer."""

    def __init__(self, tokenizer: Any, template: str, folder: Path | None = None) -> None:
        """`template` is a name (`templates.template_named`). UserError where the tokenizer cannot fill it."""
        self._tokenizer = tokenizer
        self.template = template_named(template, tokenizer)
        """Jinja text."""
        own_end = turn_end(tokenizer, self.template)
        self.stop_ids = tuple(sorted({*stop_ids(tokenizer, folder), *([] if own_end is None else [own_end])}))
        """Every token that ends an answer."""
        self._end = tokenizer.eos_token_id if own_end is None else own_end
        self._marks = tuple(special_tokens(tokenizer).values())

    def text(self, messages: Sequence[Message]) -> str:
        """The turns as one text that waits for the reply, unless the last turn is one. jinja2.TemplateError where the
        template refuses them."""
        return _applied(self._tokenizer, self.template, messages)

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._ids(self.text(messages))

    def answer_ids(self, messages: Sequence[Message], answer: str) -> tuple[int, ...]:
        """What the model would write to give this answer, the end of its turn included.

        UserError where the tokenizer has nothing to end it with.
        """
        prompt, whole = self._with_answer(messages, answer)
        begin, ids = self._ids(prompt), self._ids(whole)
        if ids[: len(begin)] != begin:
            # a token would reach from the prompt into the answer: the model, given the prompt, writes it apart
            ids = (*begin, *self._ids(whole[len(prompt) :]))
        written = ids[len(begin) :]
        ends = [index for index, token in enumerate(written) if token in self.stop_ids]
        if not ends and self._end is None:
            raise UserError("this tokenizer has no end of sequence, so no answer would end: give a model that has one")
        return written[: ends[0] + 1] if ends else (*written, self._end)

    def answer_text(self, messages: Sequence[Message], answer: str) -> str:
        """The answer with the white space that the template writes in front of it."""
        prompt, whole = self._with_answer(messages, answer)
        written = whole[len(prompt) :]
        return written[: len(written) - len(written.lstrip())] + answer.strip()

    def plain_prompt(self, messages: Sequence[Message]) -> str:
        """The prompt for programs that tokenise texts themselves, and thereby may add a beginning of sequence."""
        if self.template in TEMPLATES.values():
            return rendered(self.template, messages)
        text, bos = self.text(messages), self._tokenizer.bos_token
        if bos and text.startswith(bos) and self._tokenizer(bos)["input_ids"].count(self._tokenizer.bos_token_id) > 1:
            return text.removeprefix(bos)
        return text

    def holds_marks(self, text: str) -> bool:
        """Whether a text holds a special token, which would begin or end a turn in the midst of it."""
        return any(mark in text for mark in self._marks)

    def demand_system_turns(self, prompts: Iterable[Sequence[Message]]) -> None:
        """UserError where one of the prompts has a system turn and the template drops or refuses it."""
        from jinja2 import TemplateError

        if not any(message.role == "system" for messages in prompts for message in messages):
            return
        try:
            kept = MARK in self.text([Message("system", MARK), Message("user", "?")])
        except TemplateError:
            kept = False
        if not kept:
            raise UserError(
                "the data has system turns and the chat template drops or refuses them: choose a template that keeps"
                " them (for example hh), or leave the system turns out of the data"
            )

    def _with_answer(self, messages: Sequence[Message], answer: str) -> tuple[str, str]:
        """Prompt, and prompt with answer; the first is the beginning of the second."""
        prompt = self.text(messages)
        whole = self.text([*messages, Message("assistant", answer.strip())]).rstrip()
        # Some templates open the reply otherwise than they write replies of the past, say with a thought.
        return prompt, whole if whole.startswith(prompt) else prompt + answer.strip()

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def stop_ids(tokenizer: Any, folder: Path | None = None) -> tuple[int, ...]:
    """Ids after which a model has ended its answer: the tokenizer's end of sequence, those of `config.json` and
    `generation_config.json`, and what the tokenizer's own chat template writes behind a reply."""
    stops, words = {tokenizer.eos_token_id}, math.inf
    for name in ("config.json", "generation_config.json"):
        file = None if folder is None else folder / name
        if file is not None and file.is_file():
            stated = json.loads(file.read_text("utf-8"))
            declared = stated.get("eos_token_id")
            stops |= set(declared) if isinstance(declared, list) else {declared}
            words = min(words, stated.get("vocab_size") or math.inf)
    if getattr(tokenizer, "chat_template", None):
        stops.add(turn_end(tokenizer, tokenizer.get_chat_template()))
    # A tokenizer may know more tokens than the model has: those end nothing, and an engine refuses them.
    return tuple(sorted(token for token in stops if token is not None and token < words))


def turn_end(tokenizer: Any, template: str) -> int | None:
    """The special token that a template writes right behind the assistant's words; None where there is none."""
    from jinja2 import TemplateError

    try:
        whole = _applied(tokenizer, template, [Message("user", "?"), Message("assistant", MARK)])
    except TemplateError:
        return None
    _, mark, behind = whole.rpartition(MARK)
    ids = tokenizer(behind.strip(), add_special_tokens=False)["input_ids"] if mark else []
    return ids[0] if ids and ids[0] in special_tokens(tokenizer) else None


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """All of them, also those that have no role such as `eos_token`: the marks of turns often have none."""
    return {index: token.content for index, token in tokenizer.added_tokens_decoder.items() if token.special}


def _applied(tokenizer: Any, template: str, messages: Sequence[Message]) -> str:
    waits = messages[-1].role != "assistant"
    text: str = tokenizer.apply_chat_template(
        as_dicts(messages), chat_template=template, tokenize=False, add_generation_prompt=waits, date_string=DAY
    )
    return text
