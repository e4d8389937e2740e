"""Two passes over data of any size: the first finds all that is wrong, the second hands out what is good.

    data = inspect(["train.jsonl.gz"], Settings())
    print(data.good, data.kinds)
    for good in data.examples(set_aside=quarantine.write):
        print(good.example.better)

Memory grows with the rows by one byte each, which holds the row's outcome.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pddpo_ray.data.checks.cross_row_checks import REASONS, BetweenRows, Finding
from pddpo_ray.data.checks.problems import Bad, Fault, Good, Limits, Problem, Row, RowError
from pddpo_ray.data.files import sources
from pddpo_ray.data.formats.columns import renamed
from pddpo_ray.data.formats.dialogue import Means
from pddpo_ray.data.formats.example import Example
from pddpo_ray.data.formats.standard import FORMATS, Format, read_row, recognise
from pddpo_ray.errors import RunError, UserError

GOOD, SET_ASIDE = 0, 255
BETWEEN = tuple(REASONS)
LOOK_AHEAD = 50
"""First rows of a file that are looked at: their most frequent format is the file's."""
KEPT_PROBLEMS = 1000
"""Problems kept in words; all are counted."""

Check = Callable[[Example], None]
"""A further demand on each row; raises RowError."""
Watch = Callable[[Example], None]


@dataclass(frozen=True)
class Settings:
    """How data are read and what is tolerated."""

    format: str | None = None
    """Name of the format; None: recognised file by file."""
    means: Means = "helpful"
    limits: Limits = field(default_factory=Limits)
    keep: frozenset[str] = frozenset()
    """Problems between rows that are counted but not set aside."""
    strict: bool = False
    checks: tuple[Check, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names of fields here, and those that the files have for them."""
    ignore: frozenset[str] = frozenset()
    """Fields that are left out on purpose."""
    judged: bool = True
    """Judgements are wanted: a row in which one would be lost is set aside."""


@dataclass
class FileCount:
    """What one source held."""

    file: str
    format: str = ""
    rows: int = 0
    bad: int = 0


@dataclass
class Inspection:
    """Findings of the first pass."""

    settings: Settings
    names: list[str]
    held_out: int
    """How many of the last names are the held-out side; they are only compared with."""
    files: list[FileCount] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    tolerated: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)
    """Rows by the name of a field that was not used."""
    distinct_prompts: int = 0
    verdicts: bytearray = field(default_factory=bytearray)
    """One byte per row, in order: GOOD, SET_ASIDE, or 1 + the place of its problem in BETWEEN."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Which row conflicts with one, in words, by the row's number; at most KEPT_PROBLEMS."""

    @property
    def rows(self) -> int:
        return sum(count.rows for count in self._counts_without_held_out)

    @property
    def good(self) -> int:
        return self.rows - sum(count.bad for count in self._counts_without_held_out)

    @property
    def _counts_without_held_out(self) -> list[FileCount]:
        return self.files[: len(self.names) - self.held_out]

    def examples(self, set_aside: Callable[[Bad], None] | None = None) -> Iterator[Good]:
        """The good rows, in order; the others go to `set_aside`. Reads the sources again.

        Raises RunError if they have changed since the first pass.
        """
        number = 0
        for name in self.names[: len(self.names) - self.held_out]:
            for item in _read(name, self.settings):
                if isinstance(item, Bad) and item.problem.line == 0:
                    _hand(set_aside, item)
                    continue
                if number >= len(self.verdicts) or (self.verdicts[number] == SET_ASIDE) != isinstance(item, Bad):
                    raise RunError(f"{name} changed while it was being read; try again")
                verdict, number = self.verdicts[number], number + 1
                if isinstance(item, Bad):
                    _hand(set_aside, item)
                elif verdict == GOOD:
                    yield item
                elif set_aside is not None:
                    kind = BETWEEN[verdict - 1]
                    reason = self.reasons.get(number - 1, REASONS[kind].format("another row"))
                    set_aside(Bad(Problem(item.file, item.line, kind, reason), row=item.row))


def inspect(
    data_sets: Sequence[str | Iterable[Mapping[str, Any]]],
    settings: Settings,
    *,
    held_out: Sequence[str] = (),
    watch: Watch | None = None,
) -> Inspection:
    """The first pass over files, or over data sets in memory (`datasets.Dataset`, lists of rows). `watch` sees every
    row that is good by itself. UserError for a source that is not there; RunError at the first problem if
    `settings.strict`."""
    names = [
        data if isinstance(data, str) else sources.InMemory.of(data, place) for place, data in enumerate(data_sets, 1)
    ]
    if settings.format is not None and settings.format not in FORMATS:
        raise UserError(f"there is no format {settings.format!r}: use {', '.join(FORMATS)}")
    files, held_files = sources.expand(names), sources.expand(held_out)
    folder = Path(tempfile.mkdtemp(prefix="pddpo-data-"))
    try:
        return _FirstPass(Inspection(settings, files + held_files, len(held_files)), BetweenRows(folder), watch).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _FirstPass:
    def __init__(self, inspection: Inspection, between: BetweenRows, watch: Watch | None) -> None:
        self._inspection, self._between, self._watch = inspection, between, watch

    def run(self) -> Inspection:
        inspection = self._inspection
        for index, name in enumerate(inspection.names):
            self._inspect_source(index, name, held_out=index >= len(inspection.names) - inspection.held_out)
        inspection.distinct_prompts = self._between.distinct_prompts()
        for finding in self._between.findings():
            self._take(finding)
        inspection.problems.sort(key=lambda problem: (inspection.names.index(problem.file), problem.line))
        return inspection

    def _inspect_source(self, index: int, name: str, *, held_out: bool) -> None:
        inspection = self._inspection
        count = FileCount(name)
        inspection.files.append(count)
        for item in _read(name, inspection.settings, count):
            row = len(inspection.verdicts)
            if isinstance(item, Bad):
                self._problem(item.problem)
                if item.problem.line:
                    count.rows, count.bad = count.rows + 1, count.bad + 1
                    inspection.verdicts.append(SET_ASIDE)
                continue
            count.rows += 1
            inspection.verdicts.append(GOOD)
            inspection.unread.update(item.example.unread)
            self._between.add(item.example, row, index, item.line, held_out=held_out)
            if self._watch is not None and not held_out:
                self._watch(item.example)

    def _problem(self, problem: Problem) -> None:
        if self._inspection.settings.strict:
            raise RunError(f"{problem} (--strict)")
        self._inspection.kinds[problem.kind] += 1
        if len(self._inspection.problems) < KEPT_PROBLEMS:
            self._inspection.problems.append(problem)

    def _take(self, finding: Finding) -> None:
        inspection, entry, other = self._inspection, finding.entry, finding.other
        if finding.kind in inspection.settings.keep:
            inspection.tolerated[finding.kind] += 1
            return
        if inspection.verdicts[entry.row] != GOOD:
            return
        reason = REASONS[finding.kind].format(f"{inspection.names[other.file]}:{other.line}")
        self._problem(Problem(inspection.names[entry.file], entry.line, finding.kind, reason))
        if len(inspection.reasons) < KEPT_PROBLEMS:
            inspection.reasons[entry.row] = reason
        inspection.verdicts[entry.row] = 1 + BETWEEN.index(finding.kind)
        inspection.files[entry.file].bad += 1


def _read(name: str, settings: Settings, count: FileCount | None = None) -> Iterator[Good | Bad]:
    """Rows of one source, understood or not."""
    rows = (_rename_fields(item, settings) for item in sources.read(name, settings.limits))
    head = list(islice(rows, LOOK_AHEAD))
    form = FORMATS[settings.format] if settings.format else _format_of(head)
    if form is None and any(isinstance(item, Row) for item in head):
        first = next(item for item in head if isinstance(item, Row))
        names = ", ".join(sorted(map(str, first.value)))[:120]
        reason = f"the fields {names} belong to no known format; name one with --format ({', '.join(FORMATS)})"
        yield Bad(Problem(name, 0, "unknown-format", reason))
        return
    if count is not None and form is not None:
        count.format = form.name
    for item in chain(head, rows):
        if isinstance(item, Fault):
            yield Bad(Problem(name, item.line, item.kind, item.reason), text=item.text)
            continue
        assert form is not None
        try:
            example = read_row(item.value, form, settings.means, judged=settings.judged)
            _demand_short_texts(example, settings.limits)
            for check in settings.checks:
                check(example)
        except RowError as error:
            yield Bad(Problem(name, item.line, error.kind, str(error)), row=item.value)
        else:
            yield Good(name, item.line, example, item.value)


def _rename_fields(item: Row | Fault, settings: Settings) -> Row | Fault:
    if isinstance(item, Fault) or not (settings.columns or settings.ignore):
        return item
    return replace(item, value=renamed(item.value, settings.columns, settings.ignore))


def _format_of(head: Sequence[Row | Fault]) -> Format | None:
    votes = Counter(form.name for item in head if isinstance(item, Row) and (form := recognise(item.value)) is not None)
    return FORMATS[votes.most_common(1)[0][0]] if votes else None


def _demand_short_texts(example: Example, limits: Limits) -> None:
    """Columnar files have no lines to limit."""
    longest = max(len(text) for text in (*(m.content for m in example.prompt), *(a.text for a in example.answers)))
    if longest > limits.line_bytes:
        raise RowError("too-long", f"a text of {longest:,} characters; the limit is {limits.line_bytes:,} bytes")


def _hand(set_aside: Callable[[Bad], None] | None, bad: Bad) -> None:
    if set_aside is not None:
        set_aside(bad)


@dataclass(frozen=True)
class Glance:
    """What the first rows of a source hold."""

    format: str
    rows: int
    good: int
    helpful: int
    """Rows that say which answer is more helpful."""
    harmless: int
    """Rows that say which answer is less harmful."""
    kinds: Counter[str]
    """Rows that cannot be used, by reason."""
    examples: Sequence[Example]
    """The good rows."""


def glance(name: str, settings: Settings, most: int) -> Glance:
    """A look at the first `most` rows of one source, without what is wrong between rows."""
    count, kinds, good = FileCount(name), Counter[str](), list[Example]()
    for item in islice(_read(name, settings, count), most):
        if isinstance(item, Bad):
            kinds[item.problem.kind] += 1
        else:
            good.append(item.example)
    return Glance(
        count.format,
        len(good) + kinds.total(),
        len(good),
        sum(example.better is not None for example in good),
        sum(example.safer is not None for example in good),
        kinds,
        good,
    )


def field_names(name: str, settings: Settings, most: int) -> frozenset[str]:
    """The names that the first `most` rows of one source have for their fields."""
    rows = islice(sources.read(name, settings.limits), most)
    return frozenset(str(field_name) for item in rows if isinstance(item, Row) for field_name in item.value)
