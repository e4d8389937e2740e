"""Limits beside a trainer that draws no answers of its own, such as TRL's DPOTrainer: measured every few steps.

    watch = LimitWatch("limits.yaml", prompts, every=50, journal=Path(args.output_dir) / "limits.jsonl")
    watch.attach(trainer)
    trainer.train()

Such a trainer's pairs are drawn and labelled before it starts, so no multiplier can act on them. Instead the policy
answers your prompts, the limits' sources measure the answers, and the trainer's log gets the estimates with their
intervals. It works with every trainer that takes callbacks of transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pddpo_ray.errors import UserError
from pddpo_ray.integrations.journal_lines import append_line
from pddpo_ray.limits.answer_files import answer_of
from pddpo_ray.limits.check import Checked, check
from pddpo_ray.scoring.sources.opening import limits_given
from pddpo_ray.text.renderer import stop_ids
from pddpo_ray.theory.seeds import seed_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Draws:
    """How the answers of a look are drawn."""

    each: int = 1
    """Answers to a prompt."""
    max_tokens: int = 128
    temperature: float = 1.0
    batch: int = 8
    """Answers that are drawn at a time."""
    seed: int = 0
    """A look at a step draws from (seed, step); the trainer's own random numbers are left as they were."""


class LimitWatch(TrainerCallback):
    """Measures the limits every `every` steps and after the last one. One per trainer."""

    def __init__(
        self,
        limits: Mapping[str, Any] | str | Path,
        prompts: Sequence[Any],
        *,
        every: int,
        draws: Draws = Draws(),
        journal: Path | None = None,
        stop: bool = False,
    ) -> None:
        """`prompts` are all texts, or all conversations that the tokenizer's chat template writes; or rows with such a
        `prompt` and a `set`, for limits with `over`. `stop` ends the training, with a checkpoint, at the first look
        whose interval lies beyond a limit. The interval is that of one look: for a statement about the model that comes
        out, ask `pddpo certify`. Raises UserError for limits that no file of answers could be checked against.
        """
        if not prompts:
            raise UserError("there are no prompts to answer: give some that the training does not see")
        if every < 1:
            raise UserError(f"every={every}: a look needs at least one step before it")
        self._limits, self._rows = limits_given(limits), [_row(prompt) for prompt in prompts]
        self._is_chat = not isinstance(self._rows[0]["prompt"], str)
        if any(isinstance(row["prompt"], str) == self._is_chat for row in self._rows):
            raise UserError("prompts: some are texts and some conversations; give all in one form")
        self._every, self._draws, self._journal, self._stop = every, draws, journal, stop
        self._trainer: Any = None
        self._last: tuple[int, list[Checked]] = (-1, [])

    @property
    def checked(self) -> Mapping[str, Checked]:
        """The last look, by limit; empty before the first."""
        return {item.limit.name: item for item in self._last[1]}

    def attach(self, trainer: Any) -> None:
        """`trainer` is one of transformers or TRL, with the tokenizer as its `processing_class`."""
        if trainer.processing_class is None:
            raise UserError("the trainer has no tokenizer: give it one as processing_class")
        self._trainer = trainer
        trainer.add_callback(self)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self._every == 0:
            self._look(state.global_step)
            broken = [item for item in self._last[1] if item.kept is False]
            if broken and self._stop:
                control.should_training_stop = control.should_save = True
                logger.warning("%s: not kept; the training ends here", ", ".join(item.limit.name for item in broken))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._last[0] != state.global_step:
            self._look(state.global_step)

    def _look(self, step: int) -> None:
        rows = [row for row in self._rows for _ in range(self._draws.each)]
        texts = self._answers([row["prompt"] for row in rows], step)
        answers = [
            answer_of({**row, "response": text}, f"answer {number}")
            for number, (row, text) in enumerate(zip(rows, texts, strict=True), start=1)
        ]
        results = check(self._limits, answers)
        self._last = (step, results)
        figures = {}
        for item in results:
            for reason, count in item.kinds.items():
                figures[f"limits/{item.limit.name}/missing/{reason}"] = count / (item.n + item.failed)
            for name, amount in (("estimate", item.estimate), ("low", item.low), ("high", item.high)):
                if amount is not None:
                    figures[f"limits/{item.limit.name}/{name}"] = float(amount.number)
        self._trainer.log(figures)
        if self._journal is not None and self._trainer.accelerator.is_main_process:
            self._journal.parent.mkdir(parents=True, exist_ok=True)
            append_line(self._journal, {"step": step, "limits": {item.limit.name: item.as_json() for item in results}})

    @torch.no_grad()
    def _answers(self, prompts: Sequence[Any], step: int) -> list[str]:
        """One answer to each. The model is left in the mode that it was in."""
        draws, tokenizer = self._draws, self._trainer.processing_class
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        texts = [_chat_text(tokenizer, prompt) for prompt in prompts] if self._is_chat else list(prompts)
        side, training = tokenizer.padding_side, model.training
        tokenizer.padding_side = "left"
        model.eval()
        answers: list[str] = []
        try:
            with torch.random.fork_rng():
                torch.manual_seed(seed_of(draws.seed, "limits", step))
                for start in range(0, len(texts), draws.batch):
                    answers += self._draw_answers(model, tokenizer, texts[start : start + draws.batch])
        finally:
            tokenizer.padding_side = side
            model.train(training)
        return answers

    def _draw_answers(self, model: Any, tokenizer: Any, texts: Sequence[str]) -> list[str]:
        # a chat template adds the special tokens itself
        inputs = tokenizer(list(texts), return_tensors="pt", padding=True, add_special_tokens=not self._is_chat)
        hot = self._draws.temperature > 0
        sampling = {"temperature": self._draws.temperature, "top_p": 1.0, "top_k": 0} if hot else {}
        config = model.generation_config
        end_ids = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        stops = sorted({*stop_ids(tokenizer), *end_ids} - {None})
        ends = {"eos_token_id": stops or None, "pad_token_id": tokenizer.pad_token_id}
        # or `generate` would use the model's own penalties, lengths and suppressed tokens
        model.generation_config = GenerationConfig(do_sample=hot, **sampling, **ends)
        try:
            drawn = model.generate(
                input_ids=inputs["input_ids"].to(model.device),
                attention_mask=inputs["attention_mask"].to(model.device),
                max_new_tokens=self._draws.max_tokens,
            )
        finally:
            model.generation_config = config
        return list(tokenizer.batch_decode(drawn[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


def _row(prompt: Any) -> dict[str, Any]:
    row = dict(prompt) if isinstance(prompt, Mapping) else {"prompt": prompt}
    answer_of({**row, "response": ""}, "prompts")  # raises for a bad row
    return row


def _chat_text(tokenizer: Any, turns: Any) -> str:
    return str(tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True))
