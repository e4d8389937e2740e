"""Limits inside TRL's GRPOTrainer: one more reward function for each limit, whose weight the controller moves.

    limits = LimitedRewards("limits.yaml", journal=Path(args.output_dir) / "limits.jsonl")
    trainer = GRPOTrainer(model, reward_funcs=[helpful, *limits.reward_funcs], args=args, train_dataset=prompts)
    limits.attach(trainer)
    trainer.train()

`args` has `multi_objective_aggregation="normalize_then_sum"`: each cost is then divided by its own spread within the
group before it is weighed, which is what a multiplier means here. There is no arithmetic in this module: the measures
are the limits' sources, the multipliers `controller`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pddpo_ray.errors import UserError
from pddpo_ray.integrations.controller import LimitController

if TYPE_CHECKING:
    from trl import GRPOTrainer

AGGREGATION = "normalize_then_sum"
logger = logging.getLogger(__name__)


class LimitedRewards(TrainerCallback):
    """The reward functions of limits, and the callback that keeps their weights. One per trainer."""

    def __init__(self, limits: Mapping[str, Any] | str | Path, *, journal: Path | None = None) -> None:
        """As `LimitController`. Every process of a distributed trainer has one; the first one writes the journal."""
        self._limits, self._file = limits, journal
        self._controller = LimitController(limits)
        self._trainer: GRPOTrainer | None = None
        self._values: dict[str, list[float | None]] = {}
        self._told: list[str] = []

    @property
    def controller(self) -> LimitController:
        return self._controller

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """One function for each limit, in the file's order: minus the cost of every answer."""
        return [self._function(name) for name in self._controller.names]

    def attach(self, trainer: GRPOTrainer) -> None:
        """Takes over the last weights of the trainer, those of `reward_funcs`. Raises UserError where it is not set up
        for that."""
        names = self._controller.names
        if trainer.multi_objective_aggregation != AGGREGATION:
            raise UserError(
                f'GRPOConfig(multi_objective_aggregation="{trainer.multi_objective_aggregation}"): limits need'
                f' "{AGGREGATION}", or a cost\'s unit would decide what its multiplier means'
            )
        if trainer.reward_func_names[-len(names) :] != [_called(name) for name in names]:
            raise UserError(
                "the trainer's last reward functions are not those of the limits; write"
                " reward_funcs=[..., *limits.reward_funcs]"
            )
        self._trainer = trainer
        if self._file is not None and trainer.accelerator.is_main_process:
            self._controller = LimitController(self._limits, journal=self._file)
        trainer.add_callback(self)
        self._weigh()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """From a checkpoint, the multipliers are those that it was made with."""
        self._controller.rewind(state.global_step)
        self._weigh()

    def _function(self, name: str) -> Callable[..., list[float | None]]:
        def cost(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
            if name == self._controller.names[0]:
                self._measure(prompts, completions, columns)
            costs = self._controller.costs(name, self._values[name])
            if name == self._controller.names[-1]:
                self._move(prompts, completions)
                self._log(columns.get("log_metric"))
            return [None if one is None else -one for one in costs]

        cost.__name__ = _called(name)
        return cost

    def _measure(self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> None:
        rows = [
            {key: column[index] for key, column in columns.items() if _is_column(column, len(prompts))}
            for index in range(len(prompts))
        ]
        texts = [_text(completion) for completion in completions]
        self._values = self._controller.measure([_text(prompt) for prompt in prompts], texts, rows)

    def _move(self, prompts: Sequence[Any], completions: Sequence[Any]) -> None:
        """All processes' answers move the multipliers, once, before the trainer weighs this very batch."""
        trainer = self._trainer
        if trainer is None or not trainer.model.training:
            return
        size = trainer.num_generations
        rank = trainer.accelerator.process_index
        groups: list[Any] = [(rank, index // size) for index in range(len(prompts))]
        texts, values = [_text(completion) for completion in completions], self._values
        if trainer.accelerator.num_processes > 1:
            # here: whoever has several processes has it, and looking for engines takes it a second
            from accelerate.utils import gather_object

            groups, texts = gather_object(groups), gather_object(texts)
            values = {name: gather_object(own) for name, own in values.items()}
        self._controller.observe(values, groups, step=trainer.state.global_step, answers=texts)
        self._weigh()
        told = self._controller.messages()
        for line in told:
            if line not in self._told:
                logger.warning(line)
        self._told = told

    def _log(self, log_metric: Callable[[str, float], None] | None) -> None:
        """Estimates and multipliers beside the trainer's own figures."""
        for name, seen in self._controller.observed.items():
            if log_metric is not None and seen.estimate is not None:
                log_metric(f"limits/{name}/estimate", seen.estimate)
                log_metric(f"limits/{name}/multiplier", seen.multiplier)

    def _weigh(self) -> None:
        if self._trainer is not None:
            for place, weight in enumerate(reversed(self._controller.multipliers.values()), start=1):
                self._trainer.reward_weights[-place] = weight


def _called(name: str) -> str:
    return f"limit_{name}"


def _text(turns: Any) -> str:
    """A prompt or an answer as text; of a conversation, its turns with a blank line between them."""
    return turns if isinstance(turns, str) else "\n\n".join(str(turn.get("content") or "") for turn in turns)


def _is_column(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count
