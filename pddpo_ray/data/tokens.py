"""Texts of real data as prompts and answers in token ids, and the reasons why some cannot be used.

A run and its dry run read files through this one module: what a dry run accepts, the run renders alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pddpo_ray.config import Config, DataConfig
from pddpo_ray.data.formats.example import Example
from pddpo_ray.errors import UserError
from pddpo_ray.records import Message, Prompt, Response
from pddpo_ray.rollout.checkpoint import load_tokenizer
from pddpo_ray.text.renderer import Renderer
from pddpo_ray.text.templates import for_reading
from pddpo_ray.theory.estimates.prompt_sets import split_by_share

REFUSED = "the template refuses the turns, or a text holds its marks"


class Tokens:
    """From examples to prompts and answers in token ids; None where one is too long or cannot be rendered."""

    def __init__(self, renderer: Renderer, settings: DataConfig) -> None:
        self._renderer, self._settings = renderer, settings
        self.template = renderer.template
        self._prompts: dict[tuple[Message, ...], Prompt | None] = {}
        self._why: dict[tuple[Message, ...] | str, str] = {}
        """Why a prompt or an answer is left out."""
        self._says = ""
        """The template's error for the first turns that it refused."""
        self.categories: dict[str, str] = {}
        """Of prompts, by their ids."""

    def all_prompts(self, examples: Sequence[Example]) -> list[Prompt | None]:
        """The prompt of each example. UserError where system turns would be lost."""
        self._renderer.demand_system_turns(example.prompt for example in examples)
        prompts = [self.prompt(example.prompt) for example in examples]
        for prompt, example in zip(prompts, examples, strict=True):
            if prompt is not None and example.category is not None:
                self.categories[prompt.id] = example.category
        return prompts

    def prompt(self, messages: tuple[Message, ...]) -> Prompt | None:
        if messages not in self._prompts:
            self._prompts[messages] = self._render_prompt(messages)
        return self._prompts[messages]

    def _render_prompt(self, messages: tuple[Message, ...]) -> Prompt | None:
        from jinja2 import TemplateError

        try:
            text, ids = self._renderer.plain_prompt(messages), self._renderer.prompt_ids(messages)
        except TemplateError as error:
            self._says = self._says or f"the template says: {error}"
            text, ids = "", ()
        if not text or any(self._renderer.holds_marks(message.content) for message in messages):
            self._why[messages] = REFUSED
            return None
        if len(ids) > self._settings.prompt_tokens:
            self._why[messages] = f"the prompt is longer than data.prompt_tokens={self._settings.prompt_tokens}"
            return None
        name = f"prompt-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        return Prompt(name, ids, for_reading(messages), messages)

    def answer(self, name: str, prompt: Prompt, text: str) -> Response | None:
        """An answer as an engine returns one: the tokens that the model would write, the end of its turn last."""
        from jinja2 import TemplateError

        if self._renderer.holds_marks(text):
            self._why[text] = REFUSED
            return None
        try:
            ids = self._renderer.answer_ids(prompt.messages, text)
            written = self._renderer.answer_text(prompt.messages, text)
        except TemplateError as error:
            self._says = self._says or f"the template says: {error}"
            self._why[text] = REFUSED
            return None
        if len(ids) > self._settings.answer_tokens:
            self._why[text] = f"an answer is longer than data.answer_tokens={self._settings.answer_tokens}"
            return None
        return Response(name, prompt, ids, written, policy_version=0, seed=0)

    def drawn_answer(self, name: str, prompt: Prompt, text: str) -> Response | None:
        """`answer` for a text that a model wrote after this template's prompt."""
        return self.answer(name, prompt, self._renderer.without_lead(prompt.messages, text))

    def why(self, example: Example) -> str:
        """Why an example cannot be used: the reason of its first text that was left out."""
        texts = [example.prompt, *(answer.text for answer in example.answers)]
        return next((self._why[text] for text in texts if text in self._why), "both answers are the same tokens")

    def left_out(self) -> str:
        """A clause that counts texts that cannot be rendered, for messages; empty where there are none."""
        count = sum(reason == REFUSED for reason in self._why.values())
        if not count:
            return ""
        hint = f" ({self._says})" if self._says else ""
        return (
            f"; {count} prompts or answers are left out: the template refuses their turns, or they hold its marks{hint}"
        )


def renderer_of(folder: Path, settings: DataConfig) -> Renderer:
    """The reference's tokenizer with the recipe's template and its arguments."""
    return Renderer(load_tokenizer(folder), settings.template, folder, settings.template_arguments)


def prompts_of_sets(config: Config, settings: DataConfig) -> dict[str, int]:
    """How many of `data.prompt_count` prompts each set has at most. UserError for a set that would have none."""
    counts = split_by_share(settings.prompt_count, np.array([subset.share for subset in config.prompts.values()]))
    for name, count in zip(config.prompts, counts.tolist(), strict=True):
        if not count:
            raise UserError(
                f"prompts.{name}: its share of data.prompt_count={settings.prompt_count} is 0 prompts: raise"
                " data.prompt_count, or the share"
            )
    return dict(zip(config.prompts, counts.tolist(), strict=True))


def no_pair_fits(settings: DataConfig, tokens: Tokens) -> str:
    """Why no pair of the files can be learned from, and what to do."""
    return (
        f"no pair has a prompt of at most {settings.prompt_tokens} and answers of at most {settings.answer_tokens}"
        f" tokens: raise data.prompt_tokens and data.answer_tokens, or give other files{tokens.left_out()}"
    )


def no_prompt_fits(key: str, files: Sequence[str], settings: DataConfig, tokens: Tokens) -> str:
    """Why no prompt of a setting's files can be asked, and what to do."""
    return (
        f"{key}: no prompt of {', '.join(files)} has at most {settings.prompt_tokens} tokens: raise"
        f" data.prompt_tokens, or give other files{tokens.left_out()}"
    )
