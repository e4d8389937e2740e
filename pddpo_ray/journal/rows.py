"""Records to rows of the journal and back, and entries: what is read together with where it came from.

Both directions are exact: what is read equals what was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import zip_longest
from typing import Any, TypeVar

from pddpo_ray.records import (
    HARM,
    CostEstimate,
    Delivery,
    LabelledPair,
    Measurement,
    Message,
    Pair,
    PolicyVersion,
    Prompt,
    Response,
    SafetyLabels,
    Verdict,
)


@dataclass(frozen=True)
class VersionEntry:
    """A version with its provenance. `base` is the number of the policy its objective was relative to."""

    version: PolicyVersion
    round: int
    stage: str
    base: int | None
    multiplier: float | None
    metrics: Mapping[str, float]
    workers: tuple[int, ...]


@dataclass(frozen=True)
class PairEntry:
    """One labelled pair; round 0 holds the pairs from before the first round."""

    round: int
    labeller: str
    source: int
    labelled: LabelledPair


@dataclass(frozen=True)
class DualEntry:
    """One step of one multiplier; `multiplier_before` governed the round's policy, `multiplier_after` the next policy
    that was made after the step: the next round's, unless labels were late."""

    round: int
    constraint: str
    estimate: CostEstimate
    multiplier_before: float
    multiplier_after: float
    eta: float


@dataclass(frozen=True)
class DeliveryEntry:
    """One hand-over of weights to one engine; `canary_difference` is per token (None where it was not asked)."""

    round: int
    delivery: Delivery
    verified: bool
    canary_difference: float | None


@dataclass(frozen=True)
class PhaseEntry:
    """One finished phase; times in milliseconds since 1970 (UTC)."""

    round: int
    phase: str
    started_ms: int
    finished_ms: int
    payload: Any

    @property
    def seconds(self) -> float:
        return (self.finished_ms - self.started_ms) / 1000


@dataclass(frozen=True)
class RunEntry:
    """What the journal knows of a run as a whole; `home` and `sittings` as they were written by who drove it."""

    id: str
    name: str
    recipe: Any
    fixed_settings: Any
    created_ms: int
    part_of: str | None
    parent: str | None
    home: Mapping[str, Any] | None
    sittings: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class JournalEvent:
    """Told to a listener during a run: `what` is round-started, phase-started, phase-finished, phase-reused or
    round-finished; `seconds` is 0 at a start."""

    what: str
    round: int
    phase: str = ""
    seconds: float = 0.0


SAFETY = "safety"
"""The phase of labels of single answers."""
VALUES = {Verdict.SAFE: 0.0, Verdict.UNSAFE: 1.0}
"""What a label counts as."""
LABELS = {value: label for label, value in VALUES.items()}
Row = dict[str, Any]
Record = TypeVar("Record")


def columns_of(record: Any, *left_out: str) -> Row:
    """A record's fields, for the columns that are called like them."""
    return {name: getattr(record, name) for name in _field_names(type(record)) if name not in left_out}  # type: ignore[arg-type]


def record_of(kind: type[Record], row: Any, **fields: Any) -> Record:
    """A record of this kind: its fields are the row's columns of the same names, unless `fields` has them."""
    return kind(**{name: getattr(row, name) for name in _field_names(kind) if name not in fields}, **fields)  # type: ignore[arg-type]


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    """Cached: a run has millions of rows of few kinds."""
    return tuple(field.name for field in fields(kind))


def prompt_row(run: str, prompt: Prompt) -> Row:
    messages = [[message.role, message.content] for message in prompt.messages]
    return columns_of(prompt) | {"run": run, "messages": messages}


def prompt_record(row: Any) -> Prompt:
    return record_of(Prompt, row, token_ids=tuple(row.token_ids), messages=messages_of(row.messages))


def messages_of(stored: Iterable[tuple[str, str]]) -> tuple[Message, ...]:
    return tuple(Message(role, content) for role, content in stored)


def sample_rows(run: str, round_: int, purpose: str, responses: Iterable[Response]) -> list[Row]:
    return [
        columns_of(response)
        | {"run": run, "round": round_, "purpose": purpose, "position": position, "prompt": response.prompt.id}
        for position, response in enumerate(responses)
    ]


def response_record(row: Any, prompt: Prompt) -> Response:
    return record_of(Response, row, prompt=prompt, token_ids=tuple(row.token_ids))


def measurement_rows(
    run: str, round_: int, phase: str, measured: Iterable[Measurement], answers: Sequence[Response], at_ms: int
) -> list[Row]:
    """Rows of measurements of these answers, whose order they keep."""
    position = {answer.id: index for index, answer in enumerate(answers)}
    return [
        columns_of(item, "answer")
        | {"run": run, "round": round_, "phase": phase, "sample": item.answer, "at_ms": at_ms}
        | {"position": position[item.answer], "policy_version": answers[position[item.answer]].policy_version}
        for item in measured
    ]


def measurement_record(row: Any) -> Measurement:
    return record_of(Measurement, row, answer=row.sample)


def label_measurements(labelled: Iterable[SafetyLabels], labeller: str) -> list[Measurement]:
    """One for each label of an answer."""
    return [
        Measurement(
            item.constraint,
            item.response.id,
            VALUES.get(label),
            "" if label in VALUES else label.value,
            labeller,
            opinion=opinion,
            person=person,
        )
        for item in labelled
        for opinion, (label, person) in enumerate(zip_longest(item.labels, item.people))
    ]


def verdict_of(value: float | None, missing: str) -> Verdict:
    """A label as its measurement has it."""
    return Verdict(missing) if value is None else LABELS[value]


def pair_rows(run: str, round_: int, pairs: Iterable[Pair]) -> list[Row]:
    in_round = {"run": run, "round": round_}
    return [
        in_round | {"id": pair.id, "position": position, "first": pair.first.id, "second": pair.second.id}
        for position, pair in enumerate(pairs)
    ]


def pair_label_rows(run: str, labelled: Iterable[LabelledPair], labeller: str, source: int) -> list[Row]:
    """The table has a column for the comparison by harm, and one for all others."""
    return [
        {
            "run": run,
            "pair": item.pair.id,
            "source": source,
            "labeller": labeller,
            "helpful": item.helpful.value,
            "harmful": item.label(HARM).value,
            "further": {name: verdict.value for name, verdict in item.labels.items() if name != HARM},
        }
        for item in labelled
    ]


def labelled_pair_record(row: Any, pair: Pair) -> LabelledPair:
    labels = {HARM: row.harmful, **row.further}
    return LabelledPair(pair, Verdict(row.helpful), {name: Verdict(label) for name, label in labels.items()})
