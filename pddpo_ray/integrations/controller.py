"""A controller that holds limits inside any trainer that samples groups of answers and takes a step on them.

    controller = LimitController("limits.yaml", journal=Path("out/limits.jsonl"))
    values = controller.measure(prompts, answers)          # the limits' own sources, as in docs/limits.md
    controller.observe(values, groups=prompts, step=0)     # moves every multiplier once
    controller.multipliers                                 # {"length": 0.41}: weights of the costs

A cost is weighed per standard deviation within its group (`step_dual`). What a source could not measure is counted and
left out of the mean; a step in which a limit has no number moves nothing of it.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pddpo_ray.errors import UserError
from pddpo_ray.integrations.journal_lines import append_line, whole_lines
from pddpo_ray.limits.reading import StatedLimit
from pddpo_ray.limits.sources import Answer, Source, Unmeasured, fingerprint
from pddpo_ray.records import Array
from pddpo_ray.scoring.limit_sources import limits_given
from pddpo_ray.theory.step_dual import StepLimit, StepState, next_state

logger = logging.getLogger(__name__)
FORMAT = 1
MOSTLY = 0.5
"""A step whose answers are empty in a larger share, or of which one text is a larger share, is called collapsed."""


@dataclass(frozen=True)
class Observed:
    """What a step's answers said about one limit, in the limit's own unit."""

    estimate: float | None
    """Mean of the measured values; None: no answer had a number."""
    multiplier: float
    n: int
    failed: int
    silent: float
    """Share of groups whose answers all cost the same: none of them says in which direction to go."""


class LimitController:
    """Multipliers of limits on means and rates, moved once a step. One process owns it."""

    def __init__(self, limits: Mapping[str, Any] | str | Path, *, journal: Path | None = None) -> None:
        """`limits` are a file's path, or what stands under `limits:` in one. `journal` is a file of JSON lines that is
        made, or gone on with: the multipliers are then those of its last step.

        Raises UserError for a limit that a step's answers cannot measure, and for a journal of other limits.
        """
        self._opened = [(stated, _source_of(stated, source)) for stated, source in limits_given(limits)]
        self._limits = [_step_limit(stated) for stated, _ in self._opened]
        self._states = [StepState() for _ in self._limits]
        self._collapsed = False
        self._last: dict[str, Observed] = {}
        self._told: list[str] = []
        self._journal = None if journal is None else Path(journal)
        if self._journal is not None:
            self._open(self._journal)

    @property
    def names(self) -> list[str]:
        return [limit.name for limit in self._limits]

    @property
    def multipliers(self) -> dict[str, float]:
        return {limit.name: state.multiplier for limit, state in zip(self._limits, self._states, strict=True)}

    @property
    def observed(self) -> Mapping[str, Observed]:
        """The last step, by limit; empty before the first."""
        return self._last

    def measure(
        self, prompts: Sequence[str], answers: Sequence[str], rows: Sequence[Mapping[str, Any]] | None = None
    ) -> dict[str, list[float | None]]:
        """Each limit's measure of every answer. None: no number, or the row's `set` is not the limit's. -> by limit

        `rows` hold what else is known of each answer: `set`, `reference`, columns of a data set.
        """
        told = [{}] * len(answers) if rows is None else rows
        asked = [
            Answer(prompt, answer, row, (), row.get("reference"), f"answer {number}")
            for number, (prompt, answer, row) in enumerate(zip(prompts, answers, told, strict=True), start=1)
        ]
        return {stated.limit.name: _values(stated, source, asked) for stated, source in self._opened}

    def costs(self, name: str, values: Sequence[float | None]) -> list[float | None]:
        """Measured values as costs, of which less is better: those of `at_least` are turned round."""
        limit = next(stated.limit for stated, _ in self._opened if stated.limit.name == name)
        return [None if value is None else limit.cost(value) for value in values]

    def observe(
        self,
        values: Mapping[str, Sequence[float | None]],
        groups: Sequence[Hashable],
        *,
        step: int,
        answers: Sequence[str] | None = None,
    ) -> Mapping[str, Observed]:
        """Moves every multiplier by the values of a step's answers, and journals it. `groups` [n] says which answers
        are of one prompt; `answers` [n] are looked at for a collapse alone. -> by limit
        """
        found: dict[str, Observed] = {}
        moved = []
        for limit, state in zip(self._limits, self._states, strict=True):
            costs = self.costs(limit.name, values[limit.name])
            known = np.array([np.nan if cost is None else cost for cost in costs], dtype=np.float64)
            some, own = np.isfinite(known), values[limit.name]
            silent = _silent_share(known, groups)
            if some.any():
                mean, deviation = float(known[some].mean()), float(known[some].std())
                state = next_state(limit, state, mean, deviation, spread=silent < 1.0)
            measured = [value for value in own if value is not None and math.isfinite(value)]
            estimate = float(np.mean(measured)) if measured else None
            found[limit.name] = Observed(estimate, state.multiplier, len(measured), int((~some).sum()), silent)
            moved.append(state)
        self._states, self._last = moved, found
        self._collapsed = answers is not None and _collapsed(answers)
        if self._journal is not None:
            states = {limit.name: asdict(state) for limit, state in zip(self._limits, moved, strict=True)}
            seen = {name: asdict(one) for name, one in found.items()}
            append_line(self._journal, {"step": step, "states": states, "observed": seen, "collapsed": self._collapsed})
        return found

    def messages(self) -> list[str]:
        """What a person should know about the last step; empty where there is nothing."""
        lines = ["the answers have collapsed: most are empty or one and the same text"] if self._collapsed else []
        for limit, state in zip(self._limits, self._states, strict=True):
            seen = self._last.get(limit.name)
            if seen is None:
                continue
            if seen.n == 0:
                lines.append(f"{limit.name}: no answer of the step could be measured; its multiplier stands")
            elif seen.silent == 1.0 and state.multiplier > 0.0:
                lines.append(
                    f"{limit.name}: in every group all answers cost the same, so that no gradient can lower it; sample"
                    " hotter, or more answers to each prompt"
                )
            elif state.multiplier >= limit.upper:
                lines.append(
                    f"{limit.name}: the multiplier is at its upper end {limit.upper:g}: it may not be reachable"
                )
        return lines

    def warn(self) -> None:
        """Logs what `messages` says; a line that stood after the step before is not said again."""
        told = self.messages()
        for line in told:
            if line not in self._told:
                logger.warning(line)
        self._told = told

    def rewind(self, step: int) -> None:
        """Goes back to what was known before `step` was observed: a checkpoint of that step is gone on with."""
        states = [StepState() for _ in self._limits]
        if self._journal is not None:
            before = [line for line in _steps_that_count(whole_lines(self._journal)[1:]) if line["step"] < step]
            states = self._read_states(before[-1]) if before else states
            append_line(self._journal, {"rewound": step})
        self._states, self._last = states, {}

    def _open(self, journal: Path) -> None:
        mark = fingerprint(*(f"{stated.where} {stated.limit} {source.version}" for stated, source in self._opened))
        lines = whole_lines(journal)
        if not lines:
            journal.parent.mkdir(parents=True, exist_ok=True)
            append_line(journal, {"format": FORMAT, "limits": mark, "names": self.names})
            return
        if lines[0].get("limits") != mark:
            raise UserError(
                f"{journal} is the journal of other limits; name another file, or give the limits that it began with"
            )
        _drop_torn(journal, lines)
        steps = _steps_that_count(lines[1:])
        if steps:
            self._states = self._read_states(steps[-1])

    def _read_states(self, line: Mapping[str, Any]) -> list[StepState]:
        return [StepState(**line["states"][limit.name]) for limit in self._limits]


def _source_of(stated: StatedLimit, source: Source | None) -> Source:
    """Raises UserError for a limit that the answers of a step cannot say anything about."""
    kind = stated.limit.quantity.kind
    if kind not in ("mean", "rate"):
        raise UserError(f"{stated.where}: a limit inside another trainer is a `mean` or a `rate`; got `{kind}`")
    if stated.dual is not None:
        raise UserError(f"{stated.where}: inside another trainer a multiplier moves at every step; leave `dual` out")
    if source is None or stated.asks_people:
        who = stated.source.kind if source is None else "people"
        raise UserError(
            f"{stated.where}: {who} cannot measure the answers of a step;"
            " name a rule, regex, json_schema, function, classifier, judge or endpoint"
        )
    return source


def _step_limit(stated: StatedLimit) -> StepLimit:
    limit = stated.limit
    between = limit.cost_range
    span = None if between is None else between[1] - between[0]
    rate = limit.quantity.kind == "rate" and between == (0.0, 1.0)
    return StepLimit(limit.name, limit.cost_limit, rate, span)


def _values(stated: StatedLimit, source: Source, answers: Sequence[Answer]) -> list[float | None]:
    """None where there is no number, and for answers outside the limit's prompt set."""
    over = stated.limit.quantity.over
    own = [index for index, answer in enumerate(answers) if over is None or _of_set(answer, over)]
    values: list[float | None] = [None] * len(answers)
    for start in range(0, len(own), source.batch):
        part = own[start : start + source.batch]
        for index, value in zip(part, source.values([answers[index] for index in part]), strict=True):
            values[index] = None if isinstance(value, Unmeasured) else value
    return values


def _of_set(answer: Answer, over: str) -> bool:
    named = answer.row.get("set")
    return over in named if isinstance(named, list) else over == named


def _silent_share(costs: Array, groups: Sequence[Hashable]) -> float:
    """Share of groups with a number whose numbers are all equal; 1 where no group has one. [n], [n]"""
    of_group: dict[Hashable, list[float]] = {}
    for group, cost in zip(groups, costs, strict=True):
        if math.isfinite(cost):
            of_group.setdefault(group, []).append(float(cost))
    return float(np.mean([max(own) == min(own) for own in of_group.values()])) if of_group else 1.0


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
