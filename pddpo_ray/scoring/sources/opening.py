"""From the name of a source in a limit to the source itself: opened once, with what it needs.

for stated, source in read_limits(Path("limits.yaml")):
    ask(stated.limit.name, source, answers, stated.asking)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pddpo_ray.config.document import read_document
from pddpo_ray.errors import UserError
from pddpo_ray.limits.answer_files import answer_of
from pddpo_ray.limits.check import Checked, check
from pddpo_ray.limits.quantities import VERDICT, Scale
from pddpo_ray.limits.reading import FEEDBACK, StatedLimit, settings_of, stated_limits
from pddpo_ray.limits.sources import NO_REFERENCE, Answer, Opening, Source, Unmeasured
from pddpo_ray.registry import code_of, package_of

WINS = Scale("share of wins", True, 0.0, 1.0)


@dataclass(frozen=True)
class Surroundings:
    """What sources are opened with."""

    folder: Path
    """Paths in limits are relative to it."""
    judge: Mapping[str, Any] = field(default_factory=dict)
    """model, endpoint, key_env, ... of judges that name none: the `judge:` of the file."""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Holds the keys."""


def limits_given(limits: Mapping[str, Any] | str | Path) -> list[tuple[StatedLimit, Source | None]]:
    """Limits with their opened sources, from a file's path or from what stands under `limits:` in one. UserError."""
    if isinstance(limits, str | Path):
        return read_limits(Path(limits))
    return opened_limits({"limits": dict(limits)}, "limits", Path.cwd())


def read_limits(path: Path) -> list[tuple[StatedLimit, Source | None]]:
    """The limits of a recipe or of a file with `limits:` alone, opened; None for what only a run can measure.

    Raises UserError with what is wrong.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a file with `limits:` in it")
    document, _ = read_document(path, path.name)
    return opened_limits(document, path.name, path.parent)


def opened_limits(document: Mapping[str, Any], name: str, folder: Path) -> list[tuple[StatedLimit, Source | None]]:
    """The limits of a document with `limits:` and perhaps `judge:`, opened; its paths are relative to `folder`.

    None for what only a run can measure. Raises UserError with what is wrong.
    """
    judge = document.get("judge")
    surroundings = Surroundings(folder, judge if isinstance(judge, dict) else {})
    return [
        (entry, None if entry.source.kind in ("reference", "world") else open_source(entry, surroundings))
        for entry in stated_limits(document, name)
    ]


def open_source(stated_limit: StatedLimit, around: Surroundings) -> Source:
    """What measures a limit; of a `logit`, the share of unsafe labels. Raises UserError where it is not available."""
    source = single_source(stated_limit, around)
    return versus_reference(source) if stated_limit.limit.quantity.versus == "reference" else source


def source_in_run(stated_limit: StatedLimit, judge: Mapping[str, Any]) -> Source | None:
    """What measures a limit or a reward in a run, whose paths are absolute; None: the world's own truth, the cost model
    of feedback, people through the queue, or for a limit on the distance to the reference the trainer. Raises UserError
    where there is none."""
    if stated_limit.source.kind in ("world", "reference", "people", "model", FEEDBACK):
        return None
    return single_source(stated_limit, Surroundings(Path.cwd(), judge))


def single_source(stated_limit: StatedLimit, around: Surroundings) -> Source:
    """What measures one answer, before any difference to the reference's is taken; of a share of wins, the comparison
    of both. Raises UserError where it is not available."""
    name, kind = stated_limit.source, stated_limit.limit.quantity.kind
    if name.kind == "reference":
        raise UserError(f"{stated_limit.where}.{kind}: reference measures in a run alone")
    source: Source = code_of("sources", name.kind)(
        Opening(
            where=f"{stated_limit.where}.{kind}.{name.kind}",
            limit=stated_limit.limit.name,
            kind=kind,
            what=name.what,
            options=name.options,
            settings=settings_of(f"{stated_limit.where}.{kind}", name),
            scale=VERDICT if kind == "logit" else stated_limit.scale,
            comparing=stated_limit.wins,
            labels_each=stated_limit.asking.labels_each,
            folder=around.folder,
            judge=around.judge,
            environment=around.environment,
        )
    )
    if stated_limit.wins:
        source = replace(source, scale=WINS)
    package = package_of("sources", name.kind)
    return source if package is None else replace(source, version=f"{source.version} of {package}")


def versus_reference(source: Source) -> Source:
    """The measure of an answer less that of the reference's answer to the same prompt."""
    span = None if source.scale.low is None or source.scale.high is None else source.scale.high - source.scale.low
    scale = Scale(source.scale.unit, False, None if span is None else -span, span)

    def difference(answers: Sequence[Answer]) -> list[object]:
        with_reference = [answer for answer in answers if answer.reference is not None]
        references = [replace(answer, response=answer.reference or "") for answer in with_reference]
        values = iter(source.values([*with_reference, *references]) if with_reference else [])
        first = [next(values) for _ in with_reference]
        pairs = iter(zip(first, values, strict=True))
        return [_difference(*next(pairs)) if answer.reference is not None else NO_REFERENCE for answer in answers]

    return replace(
        source, measure=difference, scale=scale, halves=None, version=f"{source.version}, versus the reference"
    )


def _difference(value: float | Unmeasured, reference: float | Unmeasured) -> float | Unmeasured:
    if isinstance(value, Unmeasured):
        return value
    if isinstance(reference, Unmeasured):
        return replace(reference, reason=f"{reference.reason} (on the reference's answer)")
    return value - reference


def check_limits(limits: Mapping[str, Any] | str | Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, Checked]:
    """Every limit on rows with `prompt` (text or messages), `response`, perhaps `set` and `reference`. -> by name

    `limits` are a file's path, or what stands under `limits:` in one: `{"length": {"mean": {"rule": "words"},
    "at_most": 80, "bounds": [0, 200]}}`. Paths in them are relative to the file, or to the working folder. Nothing is
    trained. Raises UserError with the row or the key that is wrong.
    """
    opened = limits_given(limits)
    answers = [replace(answer_of(dict(row), f"row {n}"), where=f"row {n}") for n, row in enumerate(rows, start=1)]
    if not answers:
        raise UserError("there are no rows; give at least one with `prompt` and `response`")
    return {result.limit.name: result for result in check(opened, answers)}
