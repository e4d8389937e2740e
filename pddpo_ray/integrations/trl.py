"""Limits inside TRL's trainers that draw answers.

GRPOTrainer: one more reward function for each limit, whose weight the controller moves.

    limits = LimitedRewards("limits.yaml", journal=Path(args.output_dir) / "limits.jsonl")
    trainer = GRPOTrainer(model, reward_funcs=[helpful, *limits.reward_funcs], args=args, train_dataset=prompts)
    limits.attach(trainer)
    trainer.train()

`args` has `multi_objective_aggregation="normalize_then_sum"`: each cost is then divided by its own spread within the
group before it is weighed, which is what a multiplier means here. RLOOTrainer and OnlineDPOTrainer weigh raw numbers,
and take one function instead:

    limits = LimitedScore(helpful, "limits.yaml", journal=Path(args.output_dir) / "limits.jsonl")
    trainer = RLOOTrainer(model, reward_funcs=limits.reward_func, args=args, train_dataset=prompts)
    limits.attach(trainer)

There is no arithmetic in this module: the measures are the limits' sources, the multipliers `controller`'s, the scores
`step_scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pddpo_ray.errors import UserError
from pddpo_ray.integrations.answer_scores import demand_plain
from pddpo_ray.integrations.controller import LimitController, Value
from pddpo_ray.integrations.schedule import NO_SCHEDULE, Schedule
from pddpo_ray.integrations.turns import answer_text, prompt_text
from pddpo_ray.theory.multipliers.step_scores import step_scores

if TYPE_CHECKING:
    from trl import GRPOTrainer, RLOOTrainer
    from trl.experimental.online_dpo import OnlineDPOTrainer

AGGREGATION = "normalize_then_sum"


class _LimitCallback(TrainerCallback):
    """The controller of a trainer, and the callback that takes it back to a checkpoint. One per trainer."""

    def __init__(
        self, limits: Mapping[str, Any] | str | Path, *, journal: Path | None = None, schedule: Schedule = NO_SCHEDULE
    ) -> None:
        """As `LimitController`. Every process of a distributed trainer has one; the first one writes the journal."""
        self._limits, self._file, self._schedule = limits, journal, schedule
        self._controller = LimitController(limits, schedule=schedule)
        self._trainer: Any = None
        self._reasons: dict[str, set[str]] = {}

    @property
    def controller(self) -> LimitController:
        return self._controller

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """From a checkpoint, the multipliers are those that it was made with."""
        self._controller.rewind(state.global_step)

    def _join(self, trainer: Any) -> None:
        _demand_questions(trainer.train_dataset)
        self._trainer = trainer
        if self._file is not None and trainer.accelerator.is_main_process:
            self._controller = LimitController(self._limits, journal=self._file, schedule=self._schedule)
        trainer.add_callback(self)

    def _measure_answers(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
    ) -> dict[str, list[Value]]:
        rows = [
            {key: column[index] for key, column in columns.items() if _is_column(column, len(prompts))}
            for index in range(len(prompts))
        ]
        texts = [answer_text(completion) for completion in completions]
        return self._controller.measure([prompt_text(prompt) for prompt in prompts], texts, rows)

    def _gather(self, rows: list[Any]) -> list[Any]:
        """The rows of all processes, one process after another."""
        if self._trainer.accelerator.num_processes == 1:
            return rows
        # imported here: it takes a second, and only trainers with several processes need it
        from accelerate.utils import gather_object

        return list(gather_object(rows))

    def _observe(self, values: Mapping[str, list[Value]], groups: list[Any], texts: list[str]) -> None:
        self._controller.observe(values, groups, step=self._trainer.state.global_step, answers=texts)
        self._controller.warn()

    def _figures(self) -> dict[str, float]:
        """Figures of the limits for the trainer's log."""
        figures: dict[str, float] = {}
        for name, record in self._controller.observed.items():
            figures |= {f"limits/{name}/missing": record.missing_share, f"limits/{name}/multiplier": record.multiplier}
            if record.estimate is not None:
                figures[f"limits/{name}/estimate"] = record.estimate
            self._reasons.setdefault(name, set()).update(record.missing)
            # a reason that was seen once is logged from then on, or its mean would be over the steps that have it
            for reason in self._reasons[name]:
                figures[f"limits/{name}/missing/{reason}"] = record.share_missing_by(reason)
        return figures


class LimitedRewards(_LimitCallback):
    """The reward functions of limits, and the callback that keeps their weights, in TRL's GRPOTrainer."""

    _values: Mapping[str, list[Value]]

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
        if trainer.reward_func_names[-len(names) :] != [_function_name(name) for name in names]:
            raise UserError(
                "the trainer's last reward functions are not those of the limits; write"
                " reward_funcs=[..., *limits.reward_funcs]"
            )
        self._join(trainer)
        self._weigh()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self._weigh()

    def _function(self, name: str) -> Callable[..., list[float | None]]:
        def cost(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
            if name == self._controller.names[0]:
                self._values = self._measure_answers(prompts, completions, columns)
            costs = self._controller.costs(name, self._values[name])
            if name == self._controller.names[-1]:
                self._move(prompts, completions)
                for key, figure in self._figures().items():
                    columns["log_metric"](key, figure)
            return [None if value is None else -value for value in costs]

        cost.__name__ = _function_name(name)
        return cost

    def _move(self, prompts: Sequence[Any], completions: Sequence[Any]) -> None:
        """All processes' answers move the multipliers, once, before the trainer weighs this very batch."""
        trainer = self._trainer
        if trainer is None or not trainer.model.training:
            return
        rank, size = trainer.accelerator.process_index, trainer.num_generations
        groups = self._gather([(rank, index // size) for index in range(len(prompts))])
        values = {name: self._gather(shard) for name, shard in self._values.items()}
        self._observe(values, groups, self._gather([answer_text(completion) for completion in completions]))
        self._weigh()

    def _weigh(self) -> None:
        if self._trainer is not None:
            for place, weight in enumerate(reversed(self._controller.multipliers.values()), start=1):
                self._trainer.reward_weights[-place] = weight


class LimitedScore(_LimitCallback):
    """One reward function, of a helpfulness of yours and all limits, for TRL's RLOOTrainer and OnlineDPOTrainer."""

    def __init__(
        self, helpful: Callable[..., Sequence[float | None]], limits: Mapping[str, Any] | str | Path,
        *, journal: Path | None = None, schedule: Schedule = NO_SCHEDULE,
    ) -> None:  # fmt: skip
        """`helpful` is a reward function in TRL's form; the rest as `LimitController`."""
        demand_plain(helpful)
        super().__init__(limits, journal=journal, schedule=schedule)
        self._helpful = helpful

    def attach(self, trainer: RLOOTrainer | OnlineDPOTrainer) -> None:
        """Takes over the trainer's reward. Raises UserError where there is another one beside it."""
        if list(trainer.reward_funcs) != [self.reward_func]:
            raise UserError("limits weigh the whole reward here; write reward_funcs=limits.reward_func, and no other")
        self._join(trainer)

    def reward_func(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """Scores under the multipliers that these very answers have moved. In an evaluation they move nothing."""
        trainer = self._trainer
        if trainer is None:
            raise UserError("limits.attach(trainer) comes before trainer.train()")
        rank, size = trainer.accelerator.process_index, len(prompts)
        values = {
            name: self._gather(shard) for name, shard in self._measure_answers(prompts, completions, columns).items()
        }  # fmt: skip
        rewards = self._gather(list(self._helpful(prompts=prompts, completions=completions, **columns)))
        groups = self._gather([(rank, group) for group in self._groups(size)])
        if trainer.model.training:
            self._observe(values, groups, self._gather([answer_text(completion) for completion in completions]))
            self._log(columns.get("log_metric"))
        costs = {name: self._controller.costs(name, limit_values) for name, limit_values in values.items()}
        scores = step_scores(rewards, costs, self._controller.multipliers, groups)
        return [float(score) for score in scores[rank * size : (rank + 1) * size]]

    def _groups(self, count: int) -> list[int]:
        """RLOO's answers to a prompt follow one another; OnlineDPO has the second ones after all the first ones."""
        size = getattr(self._trainer, "num_generations", None)
        return [index % (count // 2) if size is None else index // size for index in range(count)]

    def _log(self, log_metric: Callable[[str, float], None] | None) -> None:
        for key, figure in self._figures().items():
            if log_metric is not None:
                log_metric(key, figure)
            else:  # OnlineDPO logs the means of these
                self._trainer.stats.setdefault(key, []).append(figure)


def _demand_questions(rows: Any) -> None:
    """Raises UserError for a data set of known rows whose first one asks nothing."""
    first = rows[0] if hasattr(rows, "__getitem__") and len(rows) else None
    if isinstance(first, Mapping) and not prompt_text(first.get("prompt")).strip():
        raise UserError(
            f"the training data set has no question in its column `prompt` (columns: {', '.join(map(str, first))});"
            " limits measure answers to questions: rename the column that holds them"
        )


def _function_name(name: str) -> str:
    return f"limit_{name}"


def _is_column(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count
