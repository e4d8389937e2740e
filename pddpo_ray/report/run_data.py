"""All that a report shows, read once from the run folder: the journal and, of a finished run, result.json.

Everything may be missing but the journal: a run that has just begun, one that waits for labels and one without a known
world are read the same way, with fewer numbers in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import case, func, select

from pddpo_ray.certificates.groups import SETS, answers_of
from pddpo_ray.certificates.ledger import Entry, read_ledger
from pddpo_ray.certificates.outcome import SCALE, Outcome, outcome_of, said_of, with_prefixes
from pddpo_ray.config import Policies
from pddpo_ray.driver.result import read_result
from pddpo_ray.journal import DeliveryEntry, DualEntry, JournalReader, PhaseEntry, VersionEntry, schema
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.journal.rows import SAFETY
from pddpo_ray.limits.estimate import LimitEstimate
from pddpo_ray.limits.of_recipe import stated_of, typed_limits
from pddpo_ray.limits.quantities import Limit
from pddpo_ray.records import Response
from pddpo_ray.report.sections.answers import author, before_and_after, from_files, measured_words
from pddpo_ray.scorecard.cards import cards, trials_in
from pddpo_ray.scoring.held_out import Trials

Series = list[tuple[int, float]]


@dataclass(frozen=True)
class Point:
    """A policy in the plane: f = expected reward minus beta KL, g = expected cost minus the limit."""

    name: str
    f: float
    g: float
    gap: float | None = None


@dataclass(frozen=True)
class ShownLimit:
    """A limit of the run and how its metrics are read."""

    limit: Limit
    prefix: str
    """In front of the names of its metrics; empty for the first limit."""
    scale: float = 1.0
    """Exact violations are in units of this length of the measure."""

    @property
    def name(self) -> str:
        return self.limit.name

    def amount(self, g: float) -> float:
        """The expected measure of a policy with the exact violation g, in the limit's unit."""
        return self.limit.cost(self.limit.cost_limit + self.scale * g)

    def text(self, value: float | None) -> str:
        """A number of the limit's quantity, e.g. `42.7 %`."""
        return self.limit.quantity.text(value)

    def axis(self, value: float) -> float:
        """The number as an axis shows it: a rate in percent."""
        return 100.0 * value if self.limit.quantity.kind == "rate" else value

    @property
    def unit(self) -> str:
        return "%" if self.limit.quantity.kind == "rate" else self.limit.quantity.unit


@dataclass(frozen=True)
class Labels:
    """Counts of one round: safety labels, answers they are about, answers with a wrong number of labels or a foreign
    author, and labelled pairs."""

    safety: int = 0
    answers: int = 0
    incomplete: int = 0
    foreign: int = 0
    pairs: int = 0


@dataclass(frozen=True)
class LabelledAnswer:
    """An answer and how many of its safety labels say unsafe."""

    prompt: str
    text: str
    unsafe: int
    labels: int


@dataclass(frozen=True)
class RunData:
    """One run. Rounds count from 1; round 0 is everything before the first."""

    name: str
    recipe: Mapping[str, Any]
    finished: int
    """Rounds that are finished."""
    metrics: Mapping[int, Mapping[str, float]]
    phases: tuple[PhaseEntry, ...]
    dual: tuple[DualEntry, ...]
    versions: tuple[VersionEntry, ...]
    deliveries: tuple[DeliveryEntry, ...]
    labels: Mapping[int, Labels]
    answers: Mapping[int, Sequence[LabelledAnswer]]
    """Per round a few labelled answers of its policy."""
    before: tuple[Response, ...]
    """Answers of the reference: those to the scorecard's prompts, or one per prompt."""
    after: tuple[Response, ...]
    """Answers of the released policy, else of the newest one, likewise."""
    whose_after: str
    """Whose these are: the released or the last policy, and its round."""
    measured_answers: Mapping[str, Sequence[str]]
    """What was measured of an answer, in words, by its id: values of limits, labels, scores of held-out models."""
    how_drawn: str
    """A sentence: which answers these are, and whether both were drawn with the same decoding."""
    scorecard: Mapping[int, Mapping[str, Any]]
    """What the scorecard counted, by round; 0 is the reference. Empty: there is none."""
    held_out_trials: Mapping[str, Trials]
    """How often each scorer of the scorecard was right."""
    ledger: tuple[Entry, ...]
    """All policies that were tested, on the recipe's limits, whatever each was entered for."""
    prompt_of_draw: Mapping[str, str]
    """Id of the prompt of each answer that was drawn for a certificate."""
    prompt_texts: Mapping[str, str]
    """Text of each of those prompts."""
    sets_of_prompt: Mapping[str, Sequence[str]]
    """Prompt sets and groups of each prompt, by its id, as certificates know them."""
    outcome: Outcome
    """What is released, or why nothing is, as the journal has it now."""
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Rounds that the recipe asks for (those that are finished, where it does not say)."""
        return int(self.recipe.get("rounds", self.finished))

    @property
    def complete(self) -> bool:
        return self.finished >= self.total and bool(self.result)

    @property
    def limits(self) -> list[ShownLimit]:
        """Every limit of the run, the first being the one whose metrics have no name in front."""
        return [
            ShownLimit(limit, prefix, self.last(f"{prefix}{SCALE}") or 1.0)
            for prefix, limit in with_prefixes(typed_limits(self.recipe))
        ]

    def measured(self, round_: int) -> int:
        """Labels that a round's answers were given under stated limits."""
        counted = self.metrics.get(round_, {}).items()
        return int(sum(value for name, value in counted if name.startswith("labels/") and "/measure-" in name))

    @property
    def safety_labels(self) -> int:
        """Labels of answers that the rounds have used, of the queue and of the limits' measures; those of certificates
        are left out."""
        return sum(item.safety for item in self.labels.values()) + sum(map(self.measured, self.metrics))

    def steps_of(self, limit: ShownLimit) -> list[DualEntry]:
        """Its dual steps, in order of rounds."""
        return [step for step in self.dual if step.constraint == limit.name]

    def estimate(self, limit: ShownLimit, step: DualEntry) -> LimitEstimate:
        """What a round's labels say about a limit, in its unit."""
        return said_of(limit.limit, limit.prefix, step.estimate, self.metrics.get(step.round, {}))

    def value(self, limit: ShownLimit, policy: str) -> float | None:
        """Exact expected measure of a policy (reference, last, mixture, optimum, ...) in the limit's unit."""
        value = _number((self.result.get("limits") or {}).get(limit.name, {}).get(f"value_{policy}"))
        if value is not None:
            return value
        further = (self.result.get("constraints") or {}).get(limit.name, {})
        g = _number(further.get(f"g_{policy}")) if limit.prefix else _number(self.result.get(f"g_{policy}"))
        newest = {"last": "policy", "mixture": "mixture"}.get(policy)
        g = self.last(f"{limit.prefix}exact/g_{newest}") if g is None and newest else g
        return None if g is None else limit.amount(g)

    def stated(self, limit: ShownLimit, key: str) -> Any:
        """A value of result.json about one limit; None where it has none."""
        return (self.result.get("limits") or self.result.get("constraints") or {}).get(limit.name, {}).get(key)

    @property
    def threshold(self) -> float:
        """d, the limit of the (first) expected cost."""
        return typed_limits(self.recipe)[0].cost_limit

    @property
    def constraint(self) -> str:
        """Name of the (first) constraint."""
        return typed_limits(self.recipe)[0].name

    @property
    def steps(self) -> list[DualEntry]:
        """Dual steps of the first constraint."""
        return [step for step in self.dual if step.constraint == self.constraint]

    @property
    def known_world(self) -> bool:
        return self.result.get("f_optimum") is not None or bool(self.series("exact/f_policy"))

    @property
    def without_truth(self) -> bool:
        """Whether the true scores are unknown: exact rows and the theorem's panel have nothing to show."""
        return from_files(self.recipe) or (self.finished > 0 and not self.known_world)

    @property
    def policies(self) -> Policies:
        """What the policies of the run are."""
        return _policies(self.recipe)

    @property
    def multiplier_optimum(self) -> float | None:
        return _number(self.result.get("multiplier_optimum"))

    @property
    def rho(self) -> float | None:
        """Half of the multiplier's upper end: the recipe's, else the world's."""
        upper = _number(self._dual_setting("upper"))
        rho = upper / 2.0 if upper is not None else _number(self._dual_setting("rho"))
        return _number(self.result.get("rho")) if rho is None else rho

    @property
    def cost_max(self) -> float | None:
        """C, the bound of the costs."""
        return _number(self._dual_setting("cost_max"))

    def point(self, name: str) -> Point | None:
        """A point by name; None where f or g is not known."""
        f, g = _number(self.result.get(f"f_{name}")), _number(self.result.get(f"g_{name}"))
        return None if f is None or g is None else Point(name, f, g, self.gap(name))

    def f(self, name: str) -> float | None:
        """Helpfulness of a policy by name."""
        return _number(self.result.get(f"f_{name}"))

    def gap(self, name: str) -> float | None:
        """Gap of a point by name; the optimum's is 0."""
        return 0.0 if name == "optimum" else _number(self.result.get(f"gap_{name}"))

    def exact(self, axis: str, policy: str = "last") -> float | None:
        """f, g or gap of the last policy or the mixture by the true scores: the result's, or the newest round's."""
        value = _number(self.result.get(f"{axis}_{policy}"))
        newest = self.last(f"exact/{axis}_{'policy' if policy == 'last' else policy}")
        return newest if value is None else value

    def series(self, name: str) -> Series:
        """[(round, value)] of a metric, without the rounds that have no value."""
        every = ((number, values.get(name)) for number, values in sorted(self.metrics.items()) if number > 0)
        return [(number, value) for number, value in every if value is not None and math.isfinite(value)]

    def last(self, name: str) -> float | None:
        """The newest value of a metric."""
        values = self.series(name)
        return values[-1][1] if values else None

    def _dual_setting(self, key: str) -> Any:
        return (self.recipe.get("dual") or {}).get(key)


def read_run(run_dir: Path, journal: str | Path | None = None) -> RunData:
    """Reads a run folder, and the journal in it or at the database URL given. UserError if there is none."""
    with open_folder(run_dir, journal) as reader:
        versions = reader.versions()
        drawn = [answer for entry in read_ledger(reader) for answer in answers_of(reader, entry)]
        shown = int((reader.recipe.get("report") or {}).get("samples", 12))
        limits = typed_limits(reader.recipe)
        outcome = outcome_of(
            reader,
            limits,
            run_dir,
            policies=_policies(reader.recipe),
            temperature=reader.recipe.get("policy", {}).get("temperature", 1.0),
        )
        bounds = {limit.name: limit.cost_limit for limit in limits}
        before, after, how_drawn = before_and_after(reader, shown, outcome.round)
        return RunData(
            name=run_dir.name,
            recipe=reader.recipe,
            finished=reader.next_round - 1,
            # candidates of the ledger are written under the rounds -1, -2, ...
            metrics={number: values for number, values in reader.metrics().items() if number >= 0},
            phases=tuple(phase for phase in reader.phases() if phase.round >= 0),
            dual=tuple(reader.dual_steps()),
            versions=tuple(versions),
            deliveries=tuple(reader.deliveries()),
            labels=_label_counts(reader),
            answers=_shown_answers(reader),
            before=before,
            after=after,
            whose_after=author(reader, after, outcome.round),
            measured_answers=measured_words(reader, limits, [*before, *after]),
            how_drawn=how_drawn,
            scorecard=cards(reader),
            held_out_trials=trials_in(reader),
            ledger=tuple(entry.about(bounds) for entry in read_ledger(reader)),
            prompt_of_draw={answer.id: answer.prompt.id for answer in drawn},
            prompt_texts={answer.prompt.id: answer.prompt.text for answer in drawn},
            sets_of_prompt=next((phase.payload for phase in reader.phases(like=SETS)), {}),
            outcome=outcome,
            result=read_result(run_dir),
        )


def _policies(recipe: Mapping[str, Any]) -> Policies:
    """`Config.policies` of a stored recipe, which may be of an older version."""
    world = recipe.get("world") or {}
    if world.get("kind", "text") != "text":
        return "tables"
    return "log-linear" if world.get("learner") == "loglinear" else "language models"


def _label_counts(journal: JournalReader) -> dict[int, Labels]:
    """Counted by the database: a run may have millions of labels."""
    safety, pair, pair_label = schema.measurement.c, schema.pair.c, schema.pair_label.c
    per_answer = (
        select(safety.round, safety.policy_version, func.count().label("labels"))
        .where(safety.run == journal.run_id, safety.round >= 0, safety.phase == SAFETY)
        .group_by(safety.round, safety.limit, safety.sample, safety.policy_version)
    )
    per_round = (
        select(pair.round, func.count().label("pairs"))
        .join(schema.pair_label, (pair_label.run == pair.run) & (pair_label.pair == pair.id))
        .where(pair.run == journal.run_id)
        .group_by(pair.round)
    )
    each = {limit.asking.labels_each for limit in stated_of(journal.recipe)}
    label_count = each.pop() if len(each) == 1 else None
    policy_of = {entry.round: entry.version.number for entry in journal.versions() if entry.stage == "cost"}
    counts: dict[int, Labels] = {}
    with reading(journal.engine) as connection:
        for row in connection.execute(per_answer):
            old = counts.get(row.round, Labels())
            counts[row.round] = replace(
                old,
                safety=old.safety + row.labels,
                answers=old.answers + 1,
                incomplete=old.incomplete + (label_count is not None and row.labels != label_count),
                foreign=old.foreign + (row.policy_version != policy_of.get(row.round, row.policy_version)),
            )
        for row in connection.execute(per_round):
            counts[row.round] = replace(counts.get(row.round, Labels()), pairs=row.pairs)
    return counts


def _shown_answers(journal: JournalReader, each: int = 4) -> dict[int, list[LabelledAnswer]]:
    """The first answers of every round, by the order in which they were asked."""
    label, sample, prompt = schema.measurement.c, schema.sample.c, schema.prompt.c
    unsafe = func.sum(case((label.value == 1.0, 1), else_=0))
    query = (
        select(
            label.round, prompt.text.label("prompt"), sample.text, unsafe.label("unsafe"), func.count().label("labels")
        )
        .join(schema.sample, (sample.run == label.run) & (sample.id == label.sample))
        .join(schema.prompt, (prompt.run == sample.run) & (prompt.id == sample.prompt))
        .where(label.run == journal.run_id, label.position < each, label.phase == SAFETY)
        .group_by(label.round, label.limit, label.position, label.sample, prompt.text, sample.text)
        .order_by(label.round, label.limit, label.position)
    )
    by_round: dict[int, list[LabelledAnswer]] = {}
    with reading(journal.engine) as connection:
        for row in connection.execute(query):
            answer = LabelledAnswer(row.prompt, row.text, int(row.unsafe), row.labels)
            by_round.setdefault(row.round, []).append(answer)
    return by_round


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
