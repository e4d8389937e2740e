"""A controller that holds limits inside any trainer that samples groups of answers and takes a step on them.

    controller = LimitController("limits.yaml", journal=Path("out/limits.jsonl"))
    values = controller.measure(prompts, answers)          # the limits' own sources, as in docs/limits.md
    controller.observe(values, groups=prompts, step=0)     # moves every multiplier once
    controller.multipliers                                 # {"length": 0.41}: weights of the costs

A cost is weighed per standard deviation within its group. An answer that a source could not measure counts as the worst
that the limit's bounds allow, in the estimate that moves the multiplier and in the cost that the trainer weighs, and is
counted by its reason. Where no bound is known it counts for nothing, and the log asks for one.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pddpo_ray.errors import RunError, UserError
from pddpo_ray.integrations.journal_lines import append_line, whole_lines
from pddpo_ray.integrations.schedule import NO_SCHEDULE, Schedule, first_multipliers
from pddpo_ray.limits.check import sets_of
from pddpo_ray.limits.quantities import Limit
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.limits.sources import Answer, Source, Unmeasured, ask, fingerprint
from pddpo_ray.parts.dual_step import ascend_all
from pddpo_ray.records import Array, CostEstimate
from pddpo_ray.scoring.sources.opening import limits_given
from pddpo_ray.theory.estimates.cost_estimate import within_covariance
from pddpo_ray.theory.multipliers.dual import DualState, Fixed
from pddpo_ray.theory.multipliers.step_scores import compared_groups

logger = logging.getLogger(__name__)
FORMAT = 2
Value = float | Unmeasured | None
"""A limit's measure of one answer, in its own unit; None: the answer is not of the limit's prompt set."""
WARMUP = "the multiplier stands still in the trainer's first steps"
MOSTLY = 0.5
"""A step whose answers are empty in a larger share, or of which one text is a larger share, is called collapsed."""


@dataclass(frozen=True)
class Observed:
    """What a step's answers said about one limit, in the limit's own unit."""

    estimate: float | None
    """Mean of the values, missing ones as the worst; None: no answer counted."""
    multiplier: float
    n: int
    """Answers that were measured."""
    missing: Mapping[str, int]
    """Answers that could not be measured, by kind of reason."""
    silent: float
    """Share of groups whose answers all cost the same: none of them says in which direction to go."""

    @property
    def missing_share(self) -> float:
        """Of the answers of the limit's prompt set."""
        return sum(map(self.share_missing_by, self.missing))

    def share_missing_by(self, reason: str) -> float:
        """Of the answers of the limit's prompt set, those without a number for this kind of reason."""
        return self.missing[reason] / (self.n + sum(self.missing.values())) if reason in self.missing else 0.0

    @property
    def why(self) -> str:
        return _by_reason(self.missing)


class LimitController:
    """Multipliers of limits on means and rates, moved once a step. One process owns it."""

    def __init__(
        self,
        limits: Mapping[str, Any] | str | Path,
        *,
        journal: Path | None = None,
        schedule: Schedule = NO_SCHEDULE,
    ) -> None:
        """`limits` are a file's path, or what stands under `limits:` in one. `journal` is a file of JSON lines that is
        made, or continued: the multipliers are then those of its last step.

        Raises UserError for a limit that a step's answers cannot measure, and for a journal of other limits.
        """
        self._limit_sources = [(limit, _source_of(limit, source)) for limit, source in limits_given(limits)]
        self._schedule = schedule
        self._first = self._state = first_multipliers([limit for limit, _ in self._limit_sources], schedule)
        self._in_collapse = False
        self._last: dict[str, Observed] = {}
        self._logged_lines: list[str] = []
        self._journal = None if journal is None else Path(journal)
        if self._journal is not None:
            self._open(self._journal)

    @property
    def names(self) -> list[str]:
        return [limit.limit.name for limit, _ in self._limit_sources]

    @property
    def multipliers(self) -> dict[str, float]:
        """Prices: weights of costs per standard deviation within their groups."""
        return {state.name: state.price for state in self._state.limits}

    @property
    def observed(self) -> Mapping[str, Observed]:
        """The last step, by limit; empty before the first."""
        return self._last

    def measure(
        self, prompts: Sequence[str], answers: Sequence[str], rows: Sequence[Mapping[str, Any]] | None = None
    ) -> dict[str, list[Value]]:
        """Each limit's measure of every answer. -> by limit

        `rows` hold what else is known of each answer: `set`, `reference`, columns of a data set.
        """
        all_rows = [{}] * len(answers) if rows is None else rows
        items = [
            Answer(prompt, answer, row, (), row.get("reference"), f"answer {number}")
            for number, (prompt, answer, row) in enumerate(zip(prompts, answers, all_rows, strict=True), start=1)
        ]
        return {limit.limit.name: _values(limit, source, items) for limit, source in self._limit_sources}

    def costs(self, name: str, values: Sequence[Value]) -> list[float | None]:
        """Values as costs, where less is better; `at_least` reverses the order. An unmeasured answer costs the worst
        that the bounds allow; None where no bound is known, and outside the limit's prompt set."""
        limit = self._stated_limit(name).limit
        return [None if value is None else _cost(limit, value) for value in values]

    def observe(
        self,
        values: Mapping[str, Sequence[Value]],
        groups: Sequence[Hashable],
        *,
        step: int,
        answers: Sequence[str] | None = None,
    ) -> Mapping[str, Observed]:
        """Moves every multiplier by the values of a step's answers, and journals it. `groups` [n] says which answers
        are of one prompt; `answers` [n] are looked at for a collapse alone. -> by limit

        Raises RunError where more answers could not be measured than the limit's `failed` allows; nothing moves then.
        """
        missing = {name: self._missing(name, values[name]) for name in self.names}
        summaries = {name: _estimate(name, self.costs(name, values[name]), groups) for name in self.names}
        estimates = [estimate for estimate, _ in summaries.values() if estimate is not None]
        self._state = self._after(self._state, estimates, step)
        observed = {}
        for (limit, _), (name, (estimate, silent)) in zip(self._limit_sources, summaries.items(), strict=True):
            n = sum(value is not None for value in values[name]) - missing[name].total()
            mean = None if estimate is None else limit.limit.cost(estimate.value)
            reasons = dict(missing[name].most_common())
            observed[name] = Observed(mean, self.multipliers[name], n, reasons, silent)
        self._last = observed
        self._in_collapse = answers is not None and _is_collapse(answers)
        if self._journal is not None:
            entries = {name: asdict(entry) for name, entry in observed.items()}
            line = {"step": step, "estimates": [asdict(estimate) for estimate in estimates], "observed": entries}
            append_line(self._journal, {**line, "collapsed": self._in_collapse})
        return observed

    def messages(self) -> list[str]:
        """Warnings about the last step; empty if there are none."""
        lines = ["the answers have collapsed: most are empty or one and the same text"] if self._in_collapse else []
        for state in self._state.limits:
            last = self._last.get(state.name)
            if last is None:
                continue
            if count := sum(last.missing.values()):
                has_worst = self._stated_limit(state.name).limit.worst_cost is not None
                note = "which count as the worst" if has_worst else "which count for nothing until `bounds` are stated"
                lines.append(f"{state.name}: no number for {count} of {last.n + count} answers ({last.why}), {note}")
            if last.estimate is None:
                lines.append(f"{state.name}: no answer of the step counted; its multiplier stands")
            elif last.silent == 1.0 and state.multiplier > 0.0:
                lines.append(
                    f"{state.name}: in every group all answers cost the same, so that no gradient can lower it; sample"
                    " hotter, or more answers to each prompt"
                )
            elif state.multiplier >= state.upper and not isinstance(state.rule, Fixed):
                upper = state.upper * state.scale
                lines.append(f"{state.name}: the multiplier is at its upper end {upper:g}: it may not be reachable")
        return lines

    def warn(self) -> None:
        """Logs what `messages` says; a line logged after the previous step is not logged again."""
        lines = self.messages()
        for line in lines:
            if line not in self._logged_lines:
                logger.warning(line)
        self._logged_lines = lines

    def rewind(self, step: int) -> None:
        """Restores the state before `step` was observed, for a trainer that resumes from its checkpoint."""
        before: list[Mapping[str, Any]] = []
        if self._journal is not None:
            before = [line for line in _steps_that_count(whole_lines(self._journal)[1:]) if line["step"] < step]
            append_line(self._journal, {"rewound": step})
        self._state, self._last = self._replay_steps(before), {}

    def _open(self, journal: Path) -> None:
        states = zip(self._limit_sources, self._first.limits, strict=True)
        descriptions = [f"{limit.where} {limit.limit} {source.version} {state}" for (limit, source), state in states]
        mark = fingerprint(*descriptions, str(self._schedule.warmup_steps))
        lines = whole_lines(journal)
        if not lines:
            journal.parent.mkdir(parents=True, exist_ok=True)
            append_line(journal, {"format": FORMAT, "limits": mark, "names": self.names})
            return
        if lines[0].get("format") != FORMAT:
            raise UserError(f"{journal} was begun with another version of pddpo-ray; name another file")
        if lines[0].get("limits") != mark:
            raise UserError(
                f"{journal} is the journal of other limits, or of limits that moved by another rule; name another file,"
                " or give the limits that it began with"
            )
        _drop_torn(journal, lines)
        self._state = self._replay_steps(_steps_that_count(lines[1:]))

    def _replay_steps(self, lines: Sequence[Mapping[str, Any]]) -> DualState:
        """The multipliers after these steps of the journal."""
        state = self._first
        for line in lines:
            state = self._after(state, [CostEstimate(**fields) for fields in line["estimates"]], line["step"])
        return state

    def _after(self, state: DualState, estimates: Sequence[CostEstimate], step: int) -> DualState:
        reasons = {estimate.constraint: WARMUP for estimate in estimates} if step < self._schedule.warmup_steps else {}
        return ascend_all(state, estimates, frozen=reasons)[0]

    def _stated_limit(self, name: str) -> StatedLimit:
        return next(limit for limit, _ in self._limit_sources if limit.limit.name == name)

    def _missing(self, name: str, values: Sequence[Value]) -> Counter[str]:
        """How many of a step's answers could not be measured, by kind of reason. Raises RunError for too many."""
        kinds = Counter(why for value in values if (why := _why_missing(value)))
        allowed, count = self._stated_limit(name).asking.failed, sum(value is not None for value in values)
        if allowed is not None and kinds.total() > allowed * count:
            why = _by_reason(dict(kinds.most_common()))
            raise RunError(
                f"limit {name}: no number for {kinds.total()} of {count} answers of a step ({why}), more than the"
                f" {100 * allowed:g} % that may fail; repair the source or raise `failed`"
            )
        return kinds


def _source_of(limit: StatedLimit, source: Source | None) -> Source:
    """Raises UserError for a limit that a step's answers cannot measure."""
    kind = limit.limit.quantity.kind
    if kind not in ("mean", "rate"):
        raise UserError(f"{limit.where}: a limit inside another trainer is a `mean` or a `rate`; got `{kind}`")
    if source is None or limit.asks_people:
        source_kind = limit.source.kind if source is None else "people"
        raise UserError(
            f"{limit.where}: {source_kind} cannot measure the answers of a step;"
            " name a rule, regex, json_schema, function, classifier, judge or endpoint"
        )
    return source


def _values(limit: StatedLimit, source: Source, answers: Sequence[Answer]) -> list[Value]:
    """None for answers outside the limit's prompt set. `failed` is about a step, which may be many calls."""
    over = limit.limit.quantity.over
    indices = [index for index, answer in enumerate(answers) if over is None or over in sets_of(answer)]
    asking = replace(limit.asking, answers=None, failed=None)
    measured = ask(limit.limit.name, source, [answers[index] for index in indices], asking)
    values: list[Value] = [None] * len(answers)
    for index, value in zip(indices, measured.values, strict=True):
        values[index] = value
    return values


def _by_reason(missing: Mapping[str, int]) -> str:
    """`2 was cut off, 1 abstained`"""
    return ", ".join(f"{count} {kind}" for kind, count in missing.items())


def _cost(limit: Limit, value: float | Unmeasured) -> float | None:
    return limit.worst_cost if isinstance(value, Unmeasured) or not math.isfinite(value) else limit.cost(float(value))


def _why_missing(value: Value) -> str | None:
    """The kind of reason for which an answer has no number; None: it has one, or was not asked for."""
    if isinstance(value, Unmeasured):
        return value.kind
    return None if value is None or math.isfinite(value) else f"gave {value}"


def _estimate(
    name: str, costs: Sequence[float | None], groups: Sequence[Hashable]
) -> tuple[CostEstimate | None, float]:
    """The mean cost of a step's answers, None without any, and the share of silent groups. [n], [n]"""
    rows = [(cost, group) for cost, group in zip(costs, groups, strict=True) if cost is not None]
    if not rows:
        return None, 1.0
    array, group_ids = np.array([cost for cost, _ in rows]), compared_groups([group for _, group in rows])
    silent = _silent_share(array, group_ids)
    within = float(within_covariance(array[:, None], group_ids)[0, 0]) if silent < 1.0 else 0.0
    error = float(array.std()) / math.sqrt(len(array))
    mean = float(array.mean())
    return CostEstimate(mean, error, len(array), 1, "cost_model", name, within_variance=within), silent


def _silent_share(costs: Array, groups: Sequence[Hashable]) -> float:
    """Share of groups of two and more whose costs are all equal. [n], [n]"""
    of_group: dict[Hashable, list[float]] = {}
    for group, cost in zip(groups, costs.tolist(), strict=True):
        of_group.setdefault(group, []).append(cost)
    groups_of_many = [values for values in of_group.values() if len(values) > 1]
    return float(np.mean([max(values) == min(values) for values in groups_of_many])) if groups_of_many else 1.0


def _is_collapse(answers: Sequence[str]) -> bool:
    texts = [answer.strip() for answer in answers]
    top_count = max((texts.count(text) for text in set(texts)), default=0)
    return len(texts) > 1 and top_count > MOSTLY * len(texts)


def _steps_that_count(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The observed steps without those that a later `rewind` undid."""
    steps: list[Mapping[str, Any]] = []
    for line in lines:
        if "rewound" in line:
            steps = [step for step in steps if step["step"] < line["rewound"]]
        else:
            steps.append(line)
    return steps


def _drop_torn(journal: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Rewrites the journal without a last line that was cut off."""
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    if journal.read_text(encoding="utf-8") != whole:
        aside = journal.with_suffix(".whole")
        aside.write_text(whole, encoding="utf-8")
        aside.replace(journal)
