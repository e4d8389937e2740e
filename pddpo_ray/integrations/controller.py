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
        self._opened = [(stated, _source_of(stated, source)) for stated, source in limits_given(limits)]
        self._schedule = schedule
        self._first = self._state = first_multipliers([stated for stated, _ in self._opened], schedule)
        self._collapsed = False
        self._last: dict[str, Observed] = {}
        self._told: list[str] = []
        self._journal = None if journal is None else Path(journal)
        if self._journal is not None:
            self._open(self._journal)

    @property
    def names(self) -> list[str]:
        return [stated.limit.name for stated, _ in self._opened]

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
        told = [{}] * len(answers) if rows is None else rows
        asked = [
            Answer(prompt, answer, row, (), row.get("reference"), f"answer {number}")
            for number, (prompt, answer, row) in enumerate(zip(prompts, answers, told, strict=True), start=1)
        ]
        return {stated.limit.name: _values(stated, source, asked) for stated, source in self._opened}

    def costs(self, name: str, values: Sequence[Value]) -> list[float | None]:
        """Values as costs, of which less is better: those of `at_least` are turned round. What could not be measured
        costs the worst that there is; None where no bound is known, and outside the limit's prompt set."""
        limit = self._stated(name).limit
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
        seen = {name: _estimate(name, self.costs(name, values[name]), groups) for name in self.names}
        estimates = [estimate for estimate, _ in seen.values() if estimate is not None]
        self._state = self._after(self._state, estimates, step)
        found = {}
        for (stated, _), (name, (estimate, silent)) in zip(self._opened, seen.items(), strict=True):
            n = sum(value is not None for value in values[name]) - missing[name].total()
            mean = None if estimate is None else stated.limit.cost(estimate.value)
            reasons = dict(missing[name].most_common())
            found[name] = Observed(mean, self.multipliers[name], n, reasons, silent)
        self._last = found
        self._collapsed = answers is not None and _collapsed(answers)
        if self._journal is not None:
            told = {name: asdict(one) for name, one in found.items()}
            line = {"step": step, "estimates": [asdict(one) for one in estimates], "observed": told}
            append_line(self._journal, {**line, "collapsed": self._collapsed})
        return found

    def messages(self) -> list[str]:
        """What a person should know about the last step; empty where there is nothing."""
        lines = ["the answers have collapsed: most are empty or one and the same text"] if self._collapsed else []
        for state in self._state.limits:
            seen = self._last.get(state.name)
            if seen is None:
                continue
            if count := sum(seen.missing.values()):
                known = self._stated(state.name).limit.worst_cost is not None
                as_what = "which count as the worst" if known else "which count for nothing until `bounds` are stated"
                lines.append(f"{state.name}: no number for {count} of {seen.n + count} answers ({seen.why}), {as_what}")
            if seen.estimate is None:
                lines.append(f"{state.name}: no answer of the step counted; its multiplier stands")
            elif seen.silent == 1.0 and state.multiplier > 0.0:
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
        told = self.messages()
        for line in told:
            if line not in self._told:
                logger.warning(line)
        self._told = told

    def rewind(self, step: int) -> None:
        """Goes back to what was known before `step` was observed: a checkpoint of that step is resumed."""
        before: list[Mapping[str, Any]] = []
        if self._journal is not None:
            before = [line for line in _steps_that_count(whole_lines(self._journal)[1:]) if line["step"] < step]
            append_line(self._journal, {"rewound": step})
        self._state, self._last = self._replayed(before), {}

    def _open(self, journal: Path) -> None:
        states = zip(self._opened, self._first.limits, strict=True)
        about = [f"{stated.where} {stated.limit} {source.version} {state}" for (stated, source), state in states]
        mark = fingerprint(*about, str(self._schedule.warmup_steps))
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
        self._state = self._replayed(_steps_that_count(lines[1:]))

    def _replayed(self, lines: Sequence[Mapping[str, Any]]) -> DualState:
        """The multipliers after these steps of the journal."""
        state = self._first
        for line in lines:
            state = self._after(state, [CostEstimate(**one) for one in line["estimates"]], line["step"])
        return state

    def _after(self, state: DualState, estimates: Sequence[CostEstimate], step: int) -> DualState:
        held = {one.constraint: WARMUP for one in estimates} if step < self._schedule.warmup_steps else {}
        return ascend_all(state, estimates, held=held)[0]

    def _stated(self, name: str) -> StatedLimit:
        return next(stated for stated, _ in self._opened if stated.limit.name == name)

    def _missing(self, name: str, values: Sequence[Value]) -> Counter[str]:
        """How many of a step's answers could not be measured, by kind of reason. Raises RunError for too many."""
        kinds = Counter(why for value in values if (why := _why_missing(value)))
        allowed, asked = self._stated(name).asking.failed, sum(value is not None for value in values)
        if allowed is not None and kinds.total() > allowed * asked:
            why = _by_reason(dict(kinds.most_common()))
            raise RunError(
                f"limit {name}: no number for {kinds.total()} of {asked} answers of a step ({why}), more than the"
                f" {100 * allowed:g} % that may fail; repair the source or raise `failed`"
            )
        return kinds


def _source_of(stated: StatedLimit, source: Source | None) -> Source:
    """Raises UserError for a limit that the answers of a step cannot say anything about."""
    kind = stated.limit.quantity.kind
    if kind not in ("mean", "rate"):
        raise UserError(f"{stated.where}: a limit inside another trainer is a `mean` or a `rate`; got `{kind}`")
    if source is None or stated.asks_people:
        who = stated.source.kind if source is None else "people"
        raise UserError(
            f"{stated.where}: {who} cannot measure the answers of a step;"
            " name a rule, regex, json_schema, function, classifier, judge or endpoint"
        )
    return source


def _values(stated: StatedLimit, source: Source, answers: Sequence[Answer]) -> list[Value]:
    """None for answers outside the limit's prompt set. `failed` is about a step, which may be many calls."""
    over = stated.limit.quantity.over
    own = [index for index, answer in enumerate(answers) if over is None or over in sets_of(answer)]
    asking = replace(stated.asking, answers=None, failed=None)
    measured = ask(stated.limit.name, source, [answers[index] for index in own], asking)
    values: list[Value] = [None] * len(answers)
    for index, value in zip(own, measured.values, strict=True):
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
    """The mean cost of a step's answers, None without any, and the share of groups that say nothing. [n], [n]"""
    known = [(cost, group) for cost, group in zip(costs, groups, strict=True) if cost is not None]
    if not known:
        return None, 1.0
    own, company = np.array([cost for cost, _ in known]), compared_groups([group for _, group in known])
    silent = _silent_share(own, company)
    within = float(within_covariance(own[:, None], company)[0, 0]) if silent < 1.0 else 0.0
    error = float(own.std()) / math.sqrt(len(own))
    mean = float(own.mean())
    return CostEstimate(mean, error, len(own), 1, "cost_model", name, within_variance=within), silent


def _silent_share(costs: Array, groups: Sequence[Hashable]) -> float:
    """Share of groups of two and more whose costs are all equal. [n], [n]"""
    of_group: dict[Hashable, list[float]] = {}
    for group, cost in zip(groups, costs.tolist(), strict=True):
        of_group.setdefault(group, []).append(cost)
    several = [own for own in of_group.values() if len(own) > 1]
    return float(np.mean([max(own) == min(own) for own in several])) if several else 1.0


def _collapsed(answers: Sequence[str]) -> bool:
    stripped = [answer.strip() for answer in answers]
    most = max((stripped.count(text) for text in set(stripped)), default=0)
    return len(stripped) > 1 and most > MOSTLY * len(stripped)


def _steps_that_count(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The observed steps, less those that a checkpoint was gone back behind."""
    kept: list[Mapping[str, Any]] = []
    for line in lines:
        if "rewound" in line:
            kept = [one for one in kept if one["step"] < line["rewound"]]
        else:
            kept.append(line)
    return kept


def _drop_torn(journal: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Leaves the whole lines alone in a file whose last one was cut off."""
    whole = "".join(json.dumps(one) + "\n" for one in lines)
    if journal.read_text(encoding="utf-8") != whole:
        aside = journal.with_suffix(".whole")
        aside.write_text(whole, encoding="utf-8")
        aside.replace(journal)
