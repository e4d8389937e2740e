"""One tokenizer with one template: the ids that are trained are the ids that the engine sees and would write.

A prompt's ids are those of the rendered turns up to where the assistant begins. An answer's ids are what the same
template adds to them when the assistant's turn is rendered too: a space in front only where the template writes one,
the answer's own white space where the template keeps it, and at the end the token by which the model ends its turn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.records import Message
from pddpo_ray.text.templates import NO_ARGUMENTS, TEMPLATES, as_dicts, rendered, template_named

MARK = "violet"
"""A word that no template writes by itself."""


class Renderer:
    """Text and ids of conversations. `folder`: where the model's configuration says which tokens end an answer."""

    def __init__(
        self, tokenizer: Any, template: str, folder: Path | None = None, arguments: Mapping[str, Any] = NO_ARGUMENTS
    ) -> None:
        """`template` is a name (`templates.template_named`). UserError where the tokenizer cannot fill it."""
        self._tokenizer = tokenizer
        self.template = template_named(template, tokenizer, arguments)
        """Jinja text."""
        own_end = turn_end(tokenizer, self.template)
        self.stop_ids = tuple(sorted({*stop_ids(tokenizer, folder), *([] if own_end is None else [own_end])}))
        """Every token that ends an answer."""
        self._end = tokenizer.eos_token_id if own_end is None else own_end
        self._marks = tuple(special_tokens(tokenizer).values())

    def text(self, messages: Sequence[Message]) -> str:
        """The turns as one text that waits for the reply, unless the last turn is one. jinja2.TemplateError where the
        template refuses them."""
        return _template_text(self._tokenizer, self.template, messages)

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._ids(self.text(messages))

    def answer_ids(self, messages: Sequence[Message], answer: str) -> tuple[int, ...]:
        """What the model would write to give this answer, the end of its turn included.

        UserError where the tokenizer has nothing to end it with.
        """
        prompt, reply, ending = self._turn_parts(messages, answer)
        prompt_ids, ids = self._ids(prompt), self._ids(prompt + reply + ending)
        if ids[: len(prompt_ids)] != prompt_ids:
            # a token would span prompt and answer: encode the answer alone, as the model would write it
            ids = (*prompt_ids, *self._ids(reply + ending))
        tokens = ids[len(prompt_ids) :]
        ends = [index for index, token in enumerate(tokens) if token in self.stop_ids]
        if not ends and self._end is None:
            raise UserError("this tokenizer has no end of sequence, so no answer would end: give a model that has one")
        return tokens[: ends[0] + 1] if ends else (*tokens, self._end)

    def answer_text(self, messages: Sequence[Message], answer: str) -> str:
        """The answer with the white space that the template writes in front of it."""
        return self._turn_parts(messages, answer)[1]

    def without_lead(self, messages: Sequence[Message], drawn: str) -> str:
        """An answer as a model wrote it, without the white space that the template writes in front of answers."""
        return drawn.removeprefix(self.answer_text(messages, MARK).removesuffix(MARK))

    def findings(self) -> list[str]:
        """Warnings about text that the template adds to every answer, or drops from it; empty where there is none."""
        from jinja2 import TemplateError

        try:
            prompt = self.text([Message("user", "?")])
            whole = self.text([Message("user", "?"), Message("assistant", MARK)])
        except TemplateError:
            return []
        bos = self._tokenizer.bos_token_id
        bos_notes = ["the chat template begins a prompt twice: take one of its bos_token out"]
        notes = bos_notes if bos is not None and self._ids(prompt)[:2] == (bos, bos) else []
        shared_length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False)))
        opening, lead = prompt[shared_length:].strip(), whole[shared_length:].partition(MARK)[0].strip()
        if MARK not in whole:
            effect = "drops the words of the assistant"
        elif lead or opening:
            effect = f"opens a reply with {opening!r}, and writes {lead!r} in front of a reply that was given"
        else:
            return notes
        has_thinking = "enable_thinking" in self.template
        hint = "; data.template_arguments={enable_thinking: false} makes both the same" if has_thinking else ""
        usage = "trained are the prompt as it opens it and the answer as the data has it"
        return [*notes, f"the chat template {effect}: {usage}{hint}"]

    def sampling(self, temperature: float) -> dict[str, Any]:
        """Settings of `generate` that sample from the policy itself: its temperature, no top-p and no top-k cut."""
        end_ids = list(self.stop_ids)
        settings = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}
        return {"eos_token_id": end_ids, "pad_token_id": end_ids[0], **settings}

    def plain_prompt(self, messages: Sequence[Message]) -> str:
        """The prompt for programs that tokenise it themselves, without the beginning of sequence that they add."""
        if self.template in TEMPLATES.values():
            return rendered(self.template, messages)
        text, bos = self.text(messages), self._tokenizer.bos_token
        if bos and text.startswith(bos) and self._tokenizer(bos)["input_ids"].count(self._tokenizer.bos_token_id) > 1:
            return text.removeprefix(bos)
        return text

    def holds_marks(self, text: str) -> bool:
        """Whether a text contains a special token, which could begin or end a turn inside it."""
        return any(mark in text for mark in self._marks)

    def demand_system_turns(self, prompts: Iterable[Sequence[Message]]) -> None:
        """UserError where one of the prompts has a system turn and the template drops or refuses it."""
        from jinja2 import TemplateError

        if not any(message.role == "system" for messages in prompts for message in messages):
            return
        try:
            keeps_system = MARK in self.text([Message("system", MARK), Message("user", "?")])
        except TemplateError:
            keeps_system = False
        if not keeps_system:
            raise UserError(
                "the data has system turns and the chat template drops or refuses them: choose a template that keeps"
                " them (for example hh), or leave the system turns out of the data"
            )

    def _turn_parts(self, messages: Sequence[Message], answer: str) -> tuple[str, str, str]:
        """Prompt; the answer with the white space that the template writes or keeps around it; the end of its turn.

        Where the template alters the answer's words, returns the answer unchanged and an empty end: some templates
        add a thought to earlier replies, or remove one.
        """
        prompt = self.text(messages)
        whole, words = self.text([*messages, Message("assistant", answer)]), answer.strip()
        lead, match, tail = whole[len(prompt) :].partition(words)
        if not match or lead.strip() or not whole.startswith(prompt):
            return prompt, answer, ""
        end = tail.strip()
        space = tail[: len(tail) - len(tail.lstrip())] if end else answer[len(answer.rstrip()) :]
        return prompt, lead + words + space, end

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def stop_ids(tokenizer: Any, folder: Path | None = None) -> tuple[int, ...]:
    """Ids after which a model has ended its answer: the tokenizer's end of sequence, those of `config.json` and
    `generation_config.json`, and what the tokenizer's own chat template writes behind a reply."""
    stops, vocabulary = {tokenizer.eos_token_id}, math.inf
    for name in ("config.json", "generation_config.json"):
        file = None if folder is None else folder / name
        if file is not None and file.is_file():
            settings = json.loads(file.read_text("utf-8"))
            end_ids = settings.get("eos_token_id")
            stops |= set(end_ids) if isinstance(end_ids, list) else {end_ids}
            vocabulary = min(vocabulary, settings.get("vocab_size") or math.inf)
    if getattr(tokenizer, "chat_template", None):
        jinja = tokenizer.chat_template
        stops |= {turn_end(tokenizer, template) for template in ([jinja] if isinstance(jinja, str) else jinja.values())}
    # A tokenizer may know more tokens than the model has: those end nothing, and an engine refuses them.
    return tuple(sorted(token for token in stops if token is not None and token < vocabulary))


def turn_end(tokenizer: Any, template: str) -> int | None:
    """The special token that a template writes right behind the assistant's words; None where there is none."""
    from jinja2 import TemplateError

    try:
        whole = _template_text(tokenizer, template, [Message("user", "?"), Message("assistant", MARK)])
    except TemplateError:
        return None
    _, mark, tail = whole.rpartition(MARK)
    ids = tokenizer(tail.strip(), add_special_tokens=False)["input_ids"] if mark else []
    return ids[0] if ids and ids[0] in special_tokens(tokenizer) else None


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """All special tokens by id, also those without a role such as `eos_token`, as marks of turns often are."""
    return {index: token.content for index, token in tokenizer.added_tokens_decoder.items() if token.special}


def _template_text(tokenizer: Any, template: str, messages: Sequence[Message]) -> str:
    waits = messages[-1].role != "assistant"
    text: str = tokenizer.apply_chat_template(
        as_dicts(messages), chat_template=template, tokenize=False, add_generation_prompt=waits
    )
    return text
