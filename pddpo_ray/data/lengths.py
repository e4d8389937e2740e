"""Lengths of real rows in a model's tokens: what fits a recipe, and what a limit on length has to leave room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pddpo_ray.data.checks.inspection import Settings, glance
from pddpo_ray.data.files.sources import expand
from pddpo_ray.data.formats.example import Example
from pddpo_ray.text.renderer import Renderer

SAMPLE = 500
"""Rows whose tokens are counted."""
MOST_ROWS = 200_000
"""Rows of each file that are read."""
WORDS_PER_TOKEN = 0.75
"""Of English text, where no tokenizer has counted it."""


@dataclass(frozen=True)
class Measured:
    """One row: tokens of its prompt and of each of its answers, and the words of the answers."""

    prompt: int
    answers: tuple[int, ...]
    words: tuple[int, ...]


@dataclass(frozen=True)
class Lengths:
    """What files of pairs or prompts hold."""

    rows: int
    """Good rows."""
    prompts: int
    """Different prompts."""
    sample: tuple[Measured, ...] = ()
    """Rows spread evenly over the files; empty where no tokenizer is known."""

    def prompt_at(self, share: float) -> int:
        """Tokens that this share of the prompts does not exceed; 0 without a sample."""
        return _at([row.prompt for row in self.sample], share)

    def answer_at(self, share: float) -> int:
        """Tokens that this share of the answers does not exceed; 0 without one."""
        return _at([count for row in self.sample for count in row.answers], share)

    def left_out(self, prompt_tokens: int, answer_tokens: int) -> float:
        """Share of the rows whose prompt or an answer is longer."""
        long = [row.prompt > prompt_tokens or max(row.answers, default=0) > answer_tokens for row in self.sample]
        return float(np.mean(long)) if long else 0.0

    def cut(self, max_tokens: int) -> float:
        """Share of the answers longer than `max_tokens`."""
        long = [count > max_tokens for row in self.sample for count in row.answers]
        return float(np.mean(long)) if long else 0.0

    @property
    def words_per_token(self) -> float:
        """Of the answers; English text's where there are none."""
        tokens = sum(sum(row.answers) for row in self.sample)
        return sum(sum(row.words) for row in self.sample) / tokens if tokens else WORDS_PER_TOKEN


def read_examples(files: Sequence[str], settings: Settings) -> list[Example]:
    """The good ones of the first `MOST_ROWS` rows of each file."""
    return [example for name in expand(files) for example in glance(name, settings, MOST_ROWS).examples]


def lengths_of(files: Sequence[str], settings: Settings, renderer: Renderer | None) -> Lengths:
    """Reads the files; a row that the template refuses is not in the sample."""
    examples = read_examples(files, settings)
    spread = np.linspace(0, len(examples) - 1, min(SAMPLE, len(examples))).round().astype(int)
    chosen = [] if renderer is None else [examples[index] for index in spread]
    sample = [_example_lengths(renderer, example) for example in chosen if renderer is not None]
    prompts = len({example.prompt for example in examples})
    return Lengths(len(examples), prompts, tuple(row for row in sample if row is not None))


def _example_lengths(renderer: Renderer, example: Example) -> Measured | None:
    from jinja2 import TemplateError

    try:
        prompt = len(renderer.prompt_ids(example.prompt))
        answers = tuple(len(renderer.answer_ids(example.prompt, answer.text)) for answer in example.answers)
    except TemplateError:
        return None
    return Measured(prompt, answers, tuple(len(answer.text.split()) for answer in example.answers))


def _at(counts: Sequence[int], share: float) -> int:
    return int(np.quantile(counts, share, method="higher")) if counts else 0
