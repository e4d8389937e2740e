"""What `pddpo data` does with good rows: render prompts, measure them, write them, set the others aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pddpo_ray.data.checks.inspection import Check, Inspection
from pddpo_ray.data.checks.problems import Bad, RowError
from pddpo_ray.data.checks.summary import Statistics
from pddpo_ray.data.files.sinks import Sink, demand_writable
from pddpo_ray.data.formats.example import Dimension, Example
from pddpo_ray.data.formats.standard import WRITABLE, write_rows
from pddpo_ray.errors import UserError
from pddpo_ray.records import Message
from pddpo_ray.text.renderer import Renderer
from pddpo_ray.text.templates import rendered, template_named

Target = Callable[[Inspection, Path | None], tuple[int, int, str | None]]


class Rendering:
    """How prompts become text and how long texts are; counts what in the data does not fit the tokenizer."""

    def __init__(self, template: str, tokenizer: Any | None, max_tokens: int | None) -> None:
        self._tokenizer, self._max_tokens = tokenizer, max_tokens
        self._renderer = None if tokenizer is None else Renderer(tokenizer, template)
        self._template = template_named(template, tokenizer)
        self._notes: Counter[str] = Counter()

    def prompt(self, messages: tuple[Message, ...]) -> str:
        """The text of a prompt. RowError where the template refuses its turns."""
        from jinja2 import TemplateError

        try:
            if self._renderer is None:
                return rendered(self._template, messages)
            return self._renderer.plain_prompt(messages)
        except TemplateError as error:
            raise RowError("bad-template", f"the chat template refuses the turns: {str(error)[:80]}") from error

    def length(self, text: str) -> int:
        """Tokens without special ones, or characters where there is no tokenizer."""
        if self._tokenizer is None:
            return len(text)
        return len(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def statistics(self) -> Statistics:
        unit = "characters" if self._tokenizer is None else "tokens"
        return Statistics(self.length, lambda example: self.prompt(example.prompt), unit)

    @property
    def checks(self) -> tuple[Check, ...]:
        """What a row must satisfy to be used with this tokenizer."""
        return () if self._renderer is None else (partial(self._demand_fit, self._renderer),)

    def warnings(self) -> list[str]:
        findings = [] if self._renderer is None else self._renderer.findings()
        return [*findings, *(f"{words}: {times:,} rows" for words, times in self._notes.items())]

    def _demand_fit(self, renderer: Renderer, example: Example) -> None:
        prompt = self.prompt(example.prompt)
        texts = [turn.content for turn in example.prompt] + [answer.text for answer in example.answers]
        if any(renderer.holds_marks(text) for text in texts):
            raise RowError("special-token", "a text holds a special token of the tokenizer, which would end a turn")
        lengths = [self.length(answer.text) for answer in example.answers]
        for answer, length in zip(example.answers, lengths, strict=True):
            joint = self.length(prompt + answer.text)
            if joint != self.length(prompt) + length:
                self._notes["a token reaches from the prompt into the answer; prompts should end in white space"] += 1
                break
        whole = self.length(prompt) + max(lengths, default=0)
        if self._max_tokens is not None and whole > self._max_tokens:
            raise RowError("too-many-tokens", f"{whole:,} tokens; the limit is {self._max_tokens:,} (--max-tokens)")


def rendering(template: str, tokenizer: Path | None, max_tokens: int | None) -> Rendering:
    """Template and tokenizer by name. UserError for what is not there."""
    if max_tokens is not None and tokenizer is None:
        raise UserError("--max-tokens counts tokens: add --tokenizer DIR")
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    return Rendering(template, loaded, max_tokens)


def load_tokenizer(folder: str | Path) -> Any:
    """The tokenizer of a local folder, without running code of its own. UserError if there is none."""
    if not Path(folder).expanduser().is_dir():
        raise UserError(f"--tokenizer {folder} is not a folder; name the folder of a tokenizer or a model")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(Path(folder).expanduser()), local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"--tokenizer {folder} holds no tokenizer: {' '.join(str(error).split())[:160]}") from error


def set_aside_all(inspection: Inspection, quarantine: Path | None) -> str | None:
    """Writes what was set aside to a file, if one is named and there is something. -> its name"""
    if quarantine is None or not inspection.kinds:
        return None
    with Sink(_jsonl(quarantine), "") as sink:
        for _ in inspection.examples(lambda bad: sink.write(quarantined(bad))):
            pass
    return str(quarantine)


def quarantined(bad: Bad) -> dict[str, Any]:
    """A line of the quarantine file: the problem, and the row (or text) as it was found, to be repaired by hand."""
    row: dict[str, Any] = dict(vars(bad.problem))
    return row | ({"text": bad.text} if bad.row is None else {"row": bad.row})


def convert(out: Path, form: str, dimension: Dimension, rendering: Rendering) -> Target:
    """Writes inspected data to a file. UserError for a wrong request, before any row is read.

    The target returns rows written, rows without a label for this format, and the quarantine file's name.
    """
    if form not in WRITABLE:
        raise UserError(f"--to {form} is unknown: use {', '.join(WRITABLE)}")
    demand_writable(out)

    def target(inspection: Inspection, quarantine: Path | None) -> tuple[int, int, str | None]:
        if str(out) in inspection.names:
            raise UserError(f"--out {out} is one of the files that are read: give another name")
        aside_path = _jsonl(quarantine or out.with_name(f"{out.name}.quarantine.jsonl"))
        unlabelled = 0
        with Sink(aside_path, "") as aside, Sink(out, form, dimension) as sink:
            for good in inspection.examples(lambda bad: aside.write(quarantined(bad))):
                rows = write_rows(good.example, form, dimension, rendering.prompt)
                unlabelled += not rows
                for row in rows:
                    sink.write(row)
        return sink.rows, unlabelled, str(aside_path) if aside.rows else None

    return target


def _jsonl(path: Path) -> Path:
    if not path.name.lower().endswith((".jsonl", ".jsonl.gz")):
        raise UserError(f"--quarantine {path}: the name must end with .jsonl or .jsonl.gz")
    return path
