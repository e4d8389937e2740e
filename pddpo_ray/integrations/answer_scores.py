"""Limits for trainers that ask for one answer's score at a time, from many processes; one owns the multipliers.

    owner = AnswerScores(limits, journal=Path("out/limits.jsonl"), answers_a_step=1024)
    asked = asked_for(["How?"], ["Soak it first."], rewards=[0.7])
    owner.score(asked).scores                              # [0.41]

The multipliers move once every `answers_a_step` answers. A request whose `id` was answered before gets the same answer
and is not counted again.

The owner writes two files: the controller's journal, and `NAME.answers.jsonl` with the answers (as numbers) of the
current step and of the one before. After a kill, a new owner restores the step from the second file; after a restart of
the whole trainer, `forget_unfinished` begins the step again.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from pddpo_ray.errors import RunError, UserError
from pddpo_ray.integrations.controller import LimitController, Value
from pddpo_ray.integrations.journal_lines import whole_lines
from pddpo_ray.integrations.schedule import NO_SCHEDULE, Schedule
from pddpo_ray.limits.sources import Unmeasured
from pddpo_ray.storage.whole_files import write_whole
from pddpo_ray.theory.multipliers.step_scores import Running, next_running, running_scores

logger = logging.getLogger(__name__)
TRAINING = "train"


@dataclass(frozen=True)
class Asked:
    """Answers that one call of a trainer asks scores for: all from training, or none."""

    prompts: Sequence[str]
    answers: Sequence[str]
    rewards: Sequence[float | None]
    rows: Sequence[Mapping[str, Any]]
    groups: Sequence[str]
    counts: bool
    """Whether they move the multipliers; those of an evaluation do not."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class Scored:
    """By answer, in the order of the request."""

    scores: list[float]
    values: dict[str, list[Value]]
    """Each limit's measure, in its own unit."""
    multipliers: dict[str, float]
    """Those that the scores were made with."""

    @property
    def figures(self) -> dict[str, list[float]]:
        """By answer, for a trainer's log: `limit/NAME`, NaN where there is no number; `missing/NAME`, 1 where the limit
        could not be measured; `multiplier/NAME`."""
        figures: dict[str, list[float]] = {}
        for name, column in self.values.items():
            figures[f"limit/{name}"] = [value if isinstance(value, float) else math.nan for value in column]
            figures[f"missing/{name}"] = [float(isinstance(value, Unmeasured)) for value in column]
            figures[f"multiplier/{name}"] = [self.multipliers[name]] * len(column)
        return figures


class Scorer(Protocol):
    """Scores answers: an `AnswerScores` in this process, or the actor that holds one for many processes."""

    def score(self, request: Asked) -> Scored: ...


def demand_plain(helpful: Any) -> None:
    """Raises UserError for a coroutine function: nothing here awaits its result."""
    if inspect.iscoroutinefunction(helpful) or inspect.iscoroutinefunction(getattr(helpful, "__call__", None)):  # noqa: B004
        raise UserError("the helpful function is `async`; give a plain one, which waits for its own calls")


def asked_for(
    prompts: Sequence[str],
    answers: Sequence[str],
    rewards: Sequence[Any],
    rows: Sequence[Mapping[str, Any]] | None = None,
    groups: Sequence[str] | None = None,
) -> Asked:
    """A request. Answers of equal `groups` are compared with each other, the prompts where none are given. Rows whose
    `split` is another than "train" make it an evaluation.

    Raises UserError where the lengths differ or a reward is no number.
    """
    table: Sequence[Mapping[str, Any]] = [{}] * len(answers) if rows is None else rows
    if not len(prompts) == len(answers) == len(rewards) == len(table):
        raise UserError(
            f"{len(prompts)} prompts, {len(answers)} answers, {len(rewards)} rewards and {len(table)} rows:"
            " one of each belongs to every answer"
        )
    values = [_reward(reward) for reward in rewards]
    counts = all(row.get("split", TRAINING) == TRAINING for row in table)
    return Asked(list(prompts), list(answers), values, list(table), list(prompts if groups is None else groups), counts)


class AnswerScores:
    """Scores of answers under limits, and the multipliers behind them. One process owns it."""

    def __init__(
        self,
        limits: Mapping[str, Any] | str | Path,
        *,
        journal: Path,
        answers_a_step: int,
        schedule: Schedule = NO_SCHEDULE,
    ) -> None:
        """`limits` and `schedule` as for `LimitController`; `journal` is made, or continued.

        Raises UserError as it does, and where one of the two files lies there without the other.
        """
        if answers_a_step < 1:
            raise UserError(f"answers_a_step is {answers_a_step}; give the answers of one step: prompts x answers each")
        self._answers_a_step = answers_a_step
        self._file = answers_file(journal)
        lines = whole_lines(self._file)
        # a journal of one line was killed before it had a step, or the other file
        if (lines and not journal.is_file()) or (not lines and len(whole_lines(journal)) > 1):
            file, lost = (self._file, journal) if lines else (journal, self._file)
            raise UserError(f"{file} is there and {lost} is not: they belong together; bring it, or name a new journal")
        self._controller = LimitController(limits, journal=journal, schedule=schedule)
        self._step = 0
        self._reward, self._costs = Running(), {name: Running() for name in self._controller.names}
        self._step_lines: list[dict[str, Any]] = []
        self._answers = 0
        self._scores_by_id: dict[str, Scored] = {}
        if lines:
            self._go_on(lines[0], lines[1:])
        else:
            self._write([])

    @property
    def multipliers(self) -> dict[str, float]:
        return self._controller.multipliers

    @property
    def step(self) -> int:
        """How often the multipliers have moved."""
        return self._step

    def score(self, request: Asked) -> Scored:
        """Scores under the multipliers of now, which these answers may move afterwards."""
        return self.score_all([request])[0]

    def score_all(self, requests: Sequence[Asked]) -> list[Scored]:
        """The same for several requests, whose answers are measured together. Raises what a limit's source raises."""
        new = [
            request for request in {item.id: item for item in requests}.values() if request.id not in self._scores_by_id
        ]
        results = {
            request.id: self._scores_by_id[request.id] for request in requests if request.id in self._scores_by_id
        }
        values = self._controller.measure(
            [prompt for request in new for prompt in request.prompts],
            [answer for request in new for answer in request.answers],
            [row for request in new for row in request.rows],
        )
        start = 0
        for request in new:
            end = start + len(request.answers)
            results[request.id] = self._score_request(
                request, {name: column[start:end] for name, column in values.items()}
            )
            start = end
        return [results[request.id] for request in requests]

    def forget_unfinished(self) -> None:
        """Drops the answers of the current step: a restarted trainer draws them again, and the old ones would shift
        all later steps against its own."""
        self._step_lines, self._answers, self._scores_by_id = [], 0, {}
        self._write([])

    def _score_request(self, request: Asked, measured: dict[str, list[Value]]) -> Scored:
        # the files have numbers and kinds of reasons; a reason itself may quote the answer
        values = {name: [_without_text(value) for value in column] for name, column in measured.items()}
        costs = {name: self._controller.costs(name, column) for name, column in values.items()}
        multipliers = self.multipliers
        scores = running_scores(request.rewards, costs, multipliers, self._reward, self._costs)
        scored = Scored(scores.tolist(), values, multipliers)
        if request.counts:
            data = {
                "groups": request.groups,
                "rewards": request.rewards,
                "marks": [_mark(text) for text in request.answers],
            }
            line = {"id": request.id, "step": self._step, **data, "scored": asdict(scored)}
            # without fsync: what a killed process wrote is read by the next one
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            self._count(line)
        return scored

    def _count(self, line: dict[str, Any]) -> None:
        self._scores_by_id[line["id"]] = _read_scores(line)
        self._step_lines.append(line)
        self._answers += len(line["groups"])
        if self._answers >= self._answers_a_step:
            self._move()

    def _move(self) -> None:
        """Journals the step before the other file drops it; a kill in between repeats it with the same result."""
        groups = _flat_list(line["groups"] for line in self._step_lines)
        counted = [self._scores_by_id[line["id"]] for line in self._step_lines]
        values = {name: _flat_list(scored.values[name] for scored in counted) for name in self._controller.names}
        marks = _flat_list(line["marks"] for line in self._step_lines)
        self._controller.observe(values, groups, step=self._step, answers=marks)
        self._reward = next_running(self._reward, _flat_list(line["rewards"] for line in self._step_lines), groups)
        self._costs = {
            name: next_running(self._costs[name], self._controller.costs(name, column), groups)
            for name, column in values.items()
        }
        self._step += 1
        done, self._step_lines, self._answers = self._step_lines, [], 0
        self._scores_by_id = {line["id"]: _read_scores(line) for line in done}
        self._write(done)
        self._controller.warn()

    def _write(self, before: Sequence[Mapping[str, Any]]) -> None:
        """Writes the file of a new step: running statistics of the steps so far, then the last step's requests."""
        costs = {name: asdict(running) for name, running in self._costs.items()}
        head = {"step": self._step, "reward": asdict(self._reward), "costs": costs}
        write_whole(self._file, "".join(json.dumps(line) + "\n" for line in (head, *before)))

    def _go_on(self, head: Mapping[str, Any], lines: Sequence[dict[str, Any]]) -> None:
        self._step = head["step"]
        self._reward = Running(**head["reward"])
        self._costs = {name: Running(**head["costs"][name]) for name in self._controller.names}
        self._controller.rewind(self._step)
        before = [line for line in lines if line["step"] < self._step]
        now = [line for line in lines if line["step"] == self._step]
        self._scores_by_id = {line["id"]: _read_scores(line) for line in before}
        # drops a torn last line before more is appended
        write_whole(self._file, "".join(json.dumps(line) + "\n" for line in (head, *before, *now)))
        try:
            for line in now:
                self._count(line)
        except RunError as problem:  # too many answers had no measurement; the source may work by now
            logger.warning("%s; the step begins again", problem)
            self.forget_unfinished()


def answers_file(journal: Path) -> Path:
    """The file beside a journal that holds the answers of the step under way."""
    return journal.with_name(f"{journal.stem}.answers.jsonl")


def _reward(value: Any) -> float | None:
    """Raises UserError for what is neither a number nor None; one that is not finite is none."""
    if value is None:
        return None
    number = value.item() if hasattr(value, "item") else value
    if not isinstance(number, Real):
        raise UserError(f"the helpful function gave {value!r} for an answer; it gives a number, or None for no number")
    return float(number) if math.isfinite(float(number)) else None


def _without_text(value: Value) -> Value:
    return Unmeasured(value.kind) if isinstance(value, Unmeasured) else value


def _read_scores(line: Mapping[str, Any]) -> Scored:
    """From a line of the file, in which what is unmeasured is a dictionary."""
    scored = Scored(**line["scored"])
    values = {
        name: [Unmeasured(**value) if isinstance(value, dict) else value for value in column]
        for name, column in scored.values.items()
    }
    return replace(scored, values=values)


def _mark(text: str) -> str:
    """Tells equal texts apart from others, without keeping them."""
    return hashlib.sha256(text.strip().encode(errors="surrogatepass")).hexdigest()[:16]


def _flat_list(parts: Iterable[Sequence[Any]]) -> list[Any]:
    return [item for part in parts for item in part]
