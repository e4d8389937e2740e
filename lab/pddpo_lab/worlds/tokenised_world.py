"""A text world's prompts and answers in the tokens of somebody's model.

A model of the world's own words reads the world's own ids. Any other one reads text: an answer is then the tokens that
its tokenizer makes of it behind the prompt, and the end of sequence. A model might write the same text in other tokens
too; their probability is not the answer's and counts as text outside the grammar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.records import Message
from pddpo_ray.text.renderer import Renderer

Ids = tuple[int, ...]


@dataclass(frozen=True)
class WorldTexts:
    """What a tokenizer has to be able to write."""

    prompts: Sequence[str]
    answers: Sequence[str]


def reads_the_worlds_words(name: str, tokenizer: Any | None, rows: int, words: Mapping[str, int]) -> bool:
    """Whether the model's ids are the world's: its tokenizer says so, or it has none and as many embeddings as words.

    UserError for a model without a tokenizer whose embeddings cannot be the world's words.
    """
    if tokenizer is not None:
        own: Mapping[str, int] = tokenizer.get_vocab()
        return all(own.get(word) == index for word, index in words.items()) and rows >= len(words)
    if rows != len(words):
        raise UserError(
            f"{name} has no tokenizer and {rows} embeddings, the world has {len(words)} words: save its own tokenizer"
            " beside it (tokenizer.save_pretrained)"
        )
    return True


def tokenised(
    name: str, tokenizer: Any, folder: Path | None, texts: WorldTexts, template: str | None
) -> Iterator[tuple[Ids, list[Ids]]]:
    """(prompt, answers) for every prompt, in order. UserError where the tokenizer cannot write the world's texts.

    Without a template the prompt is text as the tokenizer reads it, a space and the answer, as trainers treat data that
    is no conversation. With one (a name of `text.templates`), the prompt is a user's turn and the answer the reply.
    """
    if tokenizer.eos_token_id is None:
        raise UserError(f"{name}: its tokenizer has no end of sequence, so no answer would end; set its eos_token")
    _demand_words(name, tokenizer, texts)
    if template is None:
        for prompt in texts.prompts:
            yield _as_text(tokenizer, prompt, texts.answers)
        return
    renderer = Renderer(tokenizer, template, folder)
    for prompt in texts.prompts:
        turn = [Message("user", prompt)]
        yield renderer.prompt_ids(turn), [renderer.answer_ids(turn, answer) for answer in texts.answers]


def _as_text(tokenizer: Any, prompt: str, answers: Sequence[str]) -> tuple[Ids, list[Ids]]:
    end = tokenizer.eos_token_id

    def ids_of(text: Sequence[str], **settings: bool) -> list[Ids]:
        return [tuple(ids) for ids in tokenizer(list(text), **settings)["input_ids"]]

    (begin,) = ids_of([prompt])
    # a tokenizer may end every text by itself
    begin = begin[:-1] if begin and begin[-1] == end else begin
    whole = ids_of([f"{prompt} {answer}" for answer in answers])
    apart = None
    rows = []
    for index, ids in enumerate(whole):
        written = ids[len(begin) :]
        if ids[: len(begin)] != begin:
            # a token would reach from the prompt into the answer: the model, given the prompt, writes it apart
            apart = apart or ids_of([f" {answer}" for answer in answers], add_special_tokens=False)
            written = apart[index]
        rows.append(written if written[-1] == end else (*written, end))
    return begin, rows


def _demand_words(name: str, tokenizer: Any, texts: WorldTexts) -> None:
    """UserError where a text, made tokens and read back, is another one: words that the tokenizer does not know."""
    written = [*texts.prompts, *texts.answers]
    ids = tokenizer(written, add_special_tokens=False)["input_ids"]
    read = tokenizer.batch_decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    for text, again in zip(written, read, strict=True):
        if "".join(again.split()) != "".join(text.split()):
            raise UserError(
                f"{name} has another vocabulary and cannot write this world's words: its tokenizer makes"
                f" {again[:60]!r} of {text[:60]!r}"
            )
