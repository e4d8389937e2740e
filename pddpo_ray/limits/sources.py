"""What measures answers, and how it is asked: a source gives a number or the reason why there is none.

    source = Source("function my:tone", "sha256:1f0c", one_by_one(tone), Scale("share", True, 0.0, 1.0))
    measured = ask("brand", source, answers, Asking(answers=200, seconds=600.0, failed=0.1))
    measured.values     # one per answer: a number, Unmeasured with its reason, or None where it was not asked

Failures and abstentions never become numbers. They are counted; more than the allowed share is an error.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from pddpo_ray.errors import PddpoError, RunError
from pddpo_ray.limits.quantities import Kind, Scale
from pddpo_ray.limits.reading import Asking
from pddpo_ray.records import Message
from pddpo_ray.theory.seeds import generator_of

SHOWN_REASONS = 3
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
NUMBERS = re.compile(r"(?<!answered )\b\d[\w.+-]*")
"""What differs between like reasons; the status after `answered` stays."""
Measure = Callable[[Sequence["Answer"]], Sequence[object]]
"""What a source gives for each answer, in order: a number, True or False, None to abstain, or Unmeasured."""


@dataclass(frozen=True)
class Unmeasured:
    """No number, and why: the source failed, or it abstained."""

    reason: str

    @property
    def kind(self) -> str:
        """The reason without its particulars, for counts by reason: `stopped it by a filter`, `gave N, outside`."""
        return NUMBERS.sub("N", re.split(r"[:;(\[]", QUOTED.sub("...", self.reason), maxsplit=1)[0]).strip()


NO_REFERENCE = Unmeasured('has no reference answer to compare with: add "reference" to the row')


@dataclass(frozen=True)
class Answer:
    """What a source receives about one answer."""

    prompt: str
    """The prompt as text; of a conversation, its turns with a blank line between them."""
    response: str
    row: Mapping[str, Any] = field(default_factory=dict)
    """The row that both stand in, with whatever else it holds."""
    turns: tuple[Message, ...] = ()
    """The conversation; empty where the prompt is a single question."""
    reference: str | None = None
    """The reference's answer to the same prompt, for limits `versus: reference`."""
    where: str = ""
    """What messages call it, e.g. `row 3`."""


@dataclass(frozen=True)
class Source:
    """One way to measure answers. Equal versions give equal values, as far as the source itself can."""

    name: str
    version: str
    """What decides its values (hash of a file, a model's name, a question's text): its identity in the journal."""
    measure: Measure
    scale: Scale
    batch: int = 1
    """Answers per call."""
    note: str = ""
    """What a reader of the numbers should know about them."""
    halves: tuple[Measure, Measure] | None = None
    """Of a source whose values are noisy: two measurements that are independent of each other."""

    def values(self, answers: Sequence[Answer]) -> list[float | Unmeasured]:
        """One value per answer. An exception, a wrong type, NaN or a value outside the bounds is no number.

        Errors that a person must fix (a wrong key, an unknown model) are raised.
        """
        try:
            measured = list(self.measure(answers))
        except PddpoError:
            raise
        except Exception as error:
            if len(answers) > 1:
                return [value for answer in answers for value in self.values([answer])]
            return [Unmeasured(f"raised {type(error).__name__}: {error}")]
        if len(measured) != len(answers):
            return [Unmeasured(f"gave {len(measured)} values for {len(answers)} answers")] * len(answers)
        return [self._number(value) for value in measured]

    def _number(self, value: object) -> float | Unmeasured:
        if isinstance(value, Unmeasured):
            return value
        if value is None:
            return Unmeasured("abstained")
        if isinstance(value, bool | np.bool_):
            return float(value) if self.scale.verdict else Unmeasured(f"gave {value!r}, which is no number")
        if not isinstance(value, Real):
            return Unmeasured(f"gave {value!r}, which is no number")
        number, low, high = float(value), self.scale.low, self.scale.high
        if not math.isfinite(number):
            return Unmeasured(f"gave {number}")
        if (low is not None and number < low) or (high is not None and number > high):
            return Unmeasured(f"gave {number:g}, outside [{low}, {high}]")
        return number


@dataclass(frozen=True)
class Opening:
    """What a source is opened with: its limit and the settings around it."""

    where: str
    """What messages call its place, e.g. `limits.yaml: limits.brand.rate.judge`."""
    limit: str
    """The limit's name."""
    kind: Kind
    """rate: it must say yes or no. mean: a number."""
    what: str
    """The text behind the source's name; empty where options say all."""
    options: Mapping[str, Any]
    """What else the limit says."""
    settings: BaseModel | None
    """The same, checked by the class that the source's kind names; None: it names none."""
    scale: Scale
    """Unit and bounds that its values must have."""
    comparing: bool
    """Whether it is shown the reference's answer too, and says which of the two is better."""
    labels_each: int | None
    """Opinions per answer, of a judge or of people."""
    folder: Path
    """Paths in limits are relative to it."""
    judge: Mapping[str, Any]
    """The file's `judge:`, the default of judges that name nothing."""
    environment: Mapping[str, str]
    """Holds API keys."""


def one_by_one(measure: Callable[[Answer], object]) -> Measure:
    """A measure of many answers from one of a single answer."""
    return lambda answers: [measure(answer) for answer in answers]


@dataclass(frozen=True)
class Measured:
    """What a source said about answers."""

    source: str
    version: str
    values: tuple[float | Unmeasured | None, ...]
    """In the order of the answers; None: beyond the budget, not asked."""
    reasons: tuple[str, ...]
    """The first few failures: `row 3: function my:tone took longer than 10 s`."""

    @property
    def numbers(self) -> list[float]:
        return [value for value in self.values if isinstance(value, float)]

    @property
    def asked(self) -> int:
        return sum(value is not None for value in self.values)

    @property
    def failed(self) -> int:
        return self.kinds.total()

    @property
    def kinds(self) -> Counter[str]:
        """How many failed for which kind of reason."""
        return Counter(value.kind for value in self.values if isinstance(value, Unmeasured))

    @property
    def why(self) -> str:
        """`3 stopped it by a filter, 1 was cut off`."""
        return ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())


def ask(
    limit: str,
    source: Source,
    answers: Sequence[Answer],
    asking: Asking | None = None,
    *,
    seed: int = 0,
    now: Callable[[], float] = time.monotonic,
) -> Measured:
    """Measures answers for a limit, within budget and deadline. A batch that began in time is waited for, and counts.

    Raises RunError with limit, source and first row if too many fail, and what the source itself raises.
    """
    asking = asking or Asking()
    chosen = chosen_for(limit, len(answers), asking.answers, seed)
    values: list[float | Unmeasured | None] = [None] * len(answers)
    start_time = now()
    for start in range(0, len(chosen), source.batch):
        part = chosen[start : start + source.batch]
        if asking.seconds is not None and now() - start_time > asking.seconds:
            late = Unmeasured(f"was not asked: the deadline of {asking.seconds:g} s had passed")
            of_part: list[float | Unmeasured] = [late] * len(part)
        else:
            try:
                of_part = source.values([answers[index] for index in part])
            except PddpoError as error:
                raise type(error)(f"limit {limit}, {_row(answers, part[0])}: {source.name}: {error}") from error
        for index, value in zip(part, of_part, strict=True):
            values[index] = value
    failures = [(index, value) for index, value in enumerate(values) if isinstance(value, Unmeasured)]
    reasons = tuple(f"{_row(answers, index)}: {source.name} {value.reason}" for index, value in failures)
    if asking.failed is not None and len(failures) > asking.failed * len(chosen):
        raise RunError(
            f"limit {limit}: {source.name} gave no number for {len(failures)} of {len(chosen)} answers, more than the "
            f"{100 * asking.failed:g} % that may fail; {reasons[0]}; fix the source or raise `failed`"
        )
    return Measured(source.name, source.version, tuple(values), reasons[:SHOWN_REASONS])


def chosen_for(limit: str, count: int, budget: int | None, seed: int = 0) -> list[int]:
    """Which of `count` answers a budget measures: a fixed even draw for each limit name, in ascending order."""
    if budget is None or budget >= count:
        return list(range(count))
    drawn = generator_of(seed, "answers of a limit", limit).choice(count, size=budget, replace=False)
    return sorted(int(index) for index in drawn)


def asked_first(limit: str, margins: Sequence[float], unsure: int, count: int, seed: int) -> dict[int, float]:
    """Which of n answers `count` questions to people are about, each with its chance to be asked, in ascending order.

    The `unsure` ones with the smallest margins have chance 1, ties going to the earlier; the others are drawn evenly.
    No chance is 0: of an answer that could never be shown, an estimate would have to trust the machine. [n]
    """
    first = sorted(range(len(margins)), key=lambda index: (margins[index], index))[:unsure]
    pool = sorted(set(range(len(margins))) - set(first))
    drawn = [pool[index] for index in chosen_for(limit, len(pool), count - unsure, seed)]
    chances = dict.fromkeys(first, 1.0) | dict.fromkeys(drawn, len(drawn) / max(len(pool), 1))
    return dict(sorted(chances.items()))


def within_budget(limit: str, prompts: Sequence[str], budget: int | None, seed: int) -> list[int]:
    """Which answers a budget measures, as an even draw of neighbours with the same prompt. [n] -> ascending"""
    draws: list[list[int]] = []
    for index, prompt in enumerate(prompts):
        if draws and len(draws[-1]) == 1 and prompts[draws[-1][0]] == prompt:
            draws[-1].append(index)
        else:
            draws.append([index])
    if budget is None or budget >= len(prompts):
        return list(range(len(prompts)))
    indices: list[int] = []
    for number in generator_of(seed, "draws of a limit", limit).permutation(len(draws)):
        if len(indices) + len(draws[number]) <= budget:
            indices += draws[number]
    return sorted(indices)


def fingerprint(*parts: str | bytes) -> str:
    """Short hash of what decides a source's values."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _row(answers: Sequence[Answer], index: int) -> str:
    return answers[index].where or f"row {index + 1}"
