"""What a lead looks at: how people agree, where they disagree, how fast they are, and what their labels changed.

Disagreement is no fault by itself: the model says that a label is unsafe with probability sigmoid(cost), so on a
borderline answer honest people differ. The numbers here are reported, and a round never waits for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sqlalchemy import Select, exists, func, select

from pddpo_ray.annotation.queue.answer_forms import AGREED_ON, STORED, screen_form
from pddpo_ray.annotation.queue.batch_rows import RoundStatus
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.annotation.queue.worklog import worked_ms
from pddpo_ray.annotation.review.flags import Labels, Record, flags, too_fast
from pddpo_ray.journal.annotation_schema import annotator, answer, lease, question_round, seat, task, withdrawal
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.reading import JournalReader
from pddpo_ray.journal.transactions import Store
from pddpo_ray.records import Array
from pddpo_ray.theory.estimates.estimate_interval import interval
from pddpo_ray.theory.intervals import clopper_pearson

Units = Sequence[Sequence[Hashable]]
"""Labels of each item, in any order; items with fewer than two say nothing about agreement."""


def krippendorff_alpha(units: Units) -> float:
    """Krippendorff's alpha for nominal labels: 1 - observed / expected disagreement. nan where nothing varies.

    Missing labels need no filling: every item weighs by the number of its labels.
    """
    return _alpha(_coincidences(units)[0].sum(axis=0))


def alpha_interval(units: Units, *, level: float = 0.95, resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
    """Interval of alpha by drawing items again with replacement. (nan, nan) with fewer than two items."""
    tables, _ = _coincidences(units)
    if len(tables) < 2:
        return float("nan"), float("nan")
    rng = np.random.default_rng([seed, len(tables), 41])
    draws = rng.multinomial(len(tables), np.full(len(tables), 1 / len(tables)), size=resamples)
    alphas = np.array([_alpha(np.tensordot(weights, tables, axes=1)) for weights in draws.astype(np.float64)])
    alphas = alphas[np.isfinite(alphas)]
    if not len(alphas):
        return float("nan"), float("nan")
    low, high = np.quantile(alphas, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def pairwise_agreement(units: Units) -> float:
    """Share of pairs of labels of one item that are equal, over all items. nan without pairs."""
    equal = total = 0
    for labels in units:
        counts = Counter(labels)
        total += len(labels) * (len(labels) - 1)
        equal += sum(count * (count - 1) for count in counts.values())
    return equal / total if total else float("nan")


def _coincidences(units: Units) -> tuple[Array, list[Hashable]]:
    """Coincidence table of each item with at least two labels. -> [items, values, values], values"""
    items = [list(labels) for labels in units if len(labels) >= 2]
    values = sorted({label for labels in items for label in labels}, key=repr)
    index = {value: number for number, value in enumerate(values)}
    tables = np.zeros((len(items), len(values), len(values)))
    for table, labels in zip(tables, items, strict=True):
        counts = np.bincount([index[label] for label in labels], minlength=len(values)).astype(np.float64)
        table += (np.outer(counts, counts) - np.diag(counts)) / (len(labels) - 1)
    return tables, values


def _alpha(table: Array) -> float:
    """alpha of a coincidence table [values, values]."""
    margins = table.sum(axis=0)
    total = margins.sum()
    expected = total**2 - (margins**2).sum()
    if total == 0 or expected == 0:
        return float("nan")
    return float(1 - (total - 1) * (total - np.trace(table)) / expected)


# --- one person against the others ----------------------------------------------------------------------------------

Votes = Mapping[str, Hashable]
"""Labels of one item by person."""


@dataclass(frozen=True)
class AgreementWithOthers:
    """One person's agreement with the others on the same items. `p_value` is the chance of agreeing so rarely when
    one's labels are exchangeable with those of the others."""

    answers: int
    agreement: float
    expected: float
    p_value: float


def leave_one_out(items: Sequence[Votes], person: str) -> AgreementWithOthers:
    """Compares a person with all others by an exact permutation test.

    If the person is like the others, their label on an item is equally likely to be any of the item's labels. Let
    T be the number of (item, other person) pairs that agree with them: its distribution under that hypothesis follows
    by convolution over items, with no assumption about how hard the items are. The p-value is P(T <= observed).
    """
    distribution: Array = np.ones(1)
    observed = pairs = answers = 0
    expected = 0.0
    for votes in items:
        other_count = len(votes) - 1
        if person not in votes or other_count < 1:
            continue
        counts = Counter(votes.values())
        observed += counts[votes[person]] - 1
        chances = np.zeros(other_count + 1)
        for count in counts.values():
            chances[count - 1] += count / len(votes)
        expected += float(chances @ np.arange(other_count + 1))
        distribution = np.convolve(distribution, chances).astype(np.float64)
        pairs += other_count
        answers += 1
    if not answers:
        return AgreementWithOthers(0, float("nan"), float("nan"), 1.0)
    p_value = min(1.0, float(distribution[: observed + 1].sum()))
    return AgreementWithOthers(answers, observed / pairs, expected / pairs, p_value)


def share_with_interval(count: int, total: int, level: float = 0.95) -> tuple[float, float, float]:
    """A share with its exact binomial interval, e.g. of "left" among all sides chosen. (nan, 0, 1) of nothing."""
    if total == 0:
        return float("nan"), 0.0, 1.0
    return count / total, *clopper_pearson(count, total, level)


VOTE = ("handle", "key", "given", "note", "guideline")
"""Fields shown of each label of a disagreement."""
RATE_WINDOW_MS = 3600 * 1000


COUNTS = exists().where(seat.c.answer == answer.c.seq)
"""The answer has a seat of its question."""


class Quality:
    """Reads the numbers of one run; writes nothing."""

    def __init__(self, store: Store, *, idle_s: float = Rules.idle_s) -> None:
        self._store = store
        self._idle_ms = int(1000 * idle_s)

    def agreement(self, round_id: str, *, seed: int = 0) -> dict[str, dict[str, float]]:
        """Per question that people are asked (safety, more_helpful, ...): alpha with interval, pairwise agreement."""
        with reading(self._store.engine) as connection:
            rows = connection.execute(self._labels().where(task.c.question_round == round_id)).all()
        fields = STORED[rows[0].task_kind] if rows and rows[0].task_kind in AGREED_ON else ()
        result = {}
        for name in fields:
            units: dict[str, list[str]] = {}
            for row in rows:
                units.setdefault(row.task, []).append(row.given[name])
            labels = [unit for unit in units.values() if len(unit) > 1]
            low, high = alpha_interval(labels, seed=seed)
            result[name] = {
                "alpha": krippendorff_alpha(labels),
                "alpha_low": low,
                "alpha_high": high,
                "pairwise": pairwise_agreement(labels),
                "questions": len(labels),
            }
        return result

    def people(self) -> list[dict[str, Any]]:
        """One row per person who answered anything: speed, controls, sides, agreement with the others, and flags."""
        length = func.length(task.c.prompt) + func.length(task.c.first) + func.coalesce(func.length(task.c.second), 0)
        query = self._not_withdrawn().add_columns(lease.c.leased_ms, task.c.needed, length.label("characters"))
        with reading(self._store.engine) as connection:
            rows = connection.execute(query.join(lease, lease.c.id == answer.c.lease)).all()
            people = {row.id: row for row in connection.execute(select(annotator))}
        counting = [row for row in rows if row.counts and row.gold is None]
        votes, whole = _votes(counting), _whole(counting)
        by_person: dict[str, list[Any]] = {}
        for row in rows:
            by_person.setdefault(row.annotator, []).append(row)
        entries = []
        for id_ in sorted(by_person, key=lambda person_id: str(people[person_id].handle)):
            timed = people[id_].daily_cap > 0  # people of other tools are not timed here
            hasty = self._hasty(by_person[id_]) if timed else (0, 0)
            entries.append(
                {"id": id_, "handle": people[id_].handle, "held": people[id_].held, "active": people[id_].active}
                | _person(by_person[id_], votes, whole, hasty, id_)
            )
        return entries

    def _hasty(self, rows: Sequence[Any]) -> tuple[int, int]:
        """Labels of one person that came before their texts can have been read, by the server's clock, and all."""
        times = worked_ms([(row.leased_ms, row.at_ms) for row in rows], self._idle_ms)
        labels = [(ms, row) for ms, row in zip(times, rows, strict=True) if row.kind == "label"]
        return sum(too_fast(ms / 1000, row.characters) for ms, row in labels), len(labels)

    def disagreements(self, round_id: str, offset: int = 0, limit: int = 20) -> list[dict[str, Any]]:
        """Questions on which people differ most, with the texts and the votes by person, worst first."""
        with reading(self._store.engine) as connection:
            rows = connection.execute(
                self._labels().add_columns(task.c.prompt, task.c.first, task.c.second, annotator.c.handle)
                .join(annotator, annotator.c.id == answer.c.annotator)
                .where(task.c.question_round == round_id)
            ).all()  # fmt: skip
        by_task: dict[str, list[Any]] = {}
        for row in rows:
            by_task.setdefault(row.task, []).append(row)
        split = [(_split(group), key) for key, group in by_task.items()]
        items = []
        for share, key in sorted(split, key=lambda entry: (-entry[0], entry[1]))[offset : offset + limit]:
            if share > 0:
                group = by_task[key]
                votes = [{name: getattr(row, name) for name in VOTE} for row in group]
                texts = {name: getattr(group[0], name) for name in ("prompt", "first", "second")}
                items.append({"task": key, "split": share, "votes": votes, **texts})
        return items

    def refused(self, round_id: str, offset: int = 0, limit: int = 20) -> list[dict[str, Any]]:
        """Questions that people skipped, could not judge or flagged, the most refused first. A flag has its author and
        reason; who skipped is not told, since nobody is to be asked why."""
        with reading(self._store.engine) as connection:
            texts = (task.c[name] for name in ("prompt", "first", "second", "state"))
            query = self._not_withdrawn().add_columns(*texts, annotator.c.handle)
            rows = connection.execute(
                query.join(annotator, annotator.c.id == answer.c.annotator)
                .where(task.c.question_round == round_id, answer.c.kind != "label")
            ).all()  # fmt: skip
        by_task: dict[str, list[Any]] = {}
        for row in rows:
            by_task.setdefault(row.task, []).append(row)
        worst = sorted(by_task, key=lambda key: (-len(by_task[key]), key))
        return [_question_refusals(key, by_task[key]) for key in worst[offset : offset + limit]]

    def pace(self, status: RoundStatus) -> dict[str, float | None]:
        """Labels per hour over the last hour of work, and seconds until the round is complete at that pace."""
        now = self._store.clock()
        since = max(now - RATE_WINDOW_MS, status.opened_ms)
        query = select(func.count()).select_from(self._labels().where(
            task.c.question_round == status.id, answer.c.at_ms > since
        ).subquery())  # fmt: skip
        with reading(self._store.engine) as connection:
            recent = connection.execute(query).scalar_one()
        hours = max(now - since, 1) / RATE_WINDOW_MS
        rate = recent / hours
        return {"labels_per_hour": rate, "seconds_left": 3600 * status.missing / rate if rate else None}

    def effects(self) -> list[dict[str, Any]]:
        """What each round's labels did: the cost estimate with its 95 % interval (None: no interval is known), and the
        multiplier before and after."""
        steps = []
        for step in JournalReader(self._store.engine, self._store.run).dual_steps():
            low, high = interval(step.estimate) or (None, None)
            numbers = {"value": step.estimate.value, "low": low, "high": high}
            multipliers = {"multiplier_before": step.multiplier_before, "multiplier_after": step.multiplier_after}
            steps.append({"round": step.round, "constraint": step.constraint, **numbers, **multipliers})
        return steps

    def export(self, round_id: str, after: int, limit: int) -> list[dict[str, Any]]:
        """Every stored action of a batch in order of arrival, withdrawn ones too; `after` continues a listing."""
        query = (
            select(
                answer, task.c.item, task.c.prompt, task.c.first, task.c.second, task.c.provenance, annotator.c.handle,
                withdrawal.c.kind.label("withdrawn"),
            )
            .join(task, task.c.id == answer.c.task)
            .join(annotator, annotator.c.id == answer.c.annotator)
            .outerjoin(withdrawal, withdrawal.c.answer == answer.c.seq)
            .where(task.c.question_round == round_id, answer.c.seq > after)
            .order_by(answer.c.seq)
            .limit(limit)
        )  # fmt: skip
        names = ("seq", "key", "item", "prompt", "first", "second", "kind", "given", "reason", "outcome", "withdrawn")
        more_names = ("late", "ms_spent", "guideline", "provenance", "at_ms")
        with reading(self._store.engine) as connection:
            return [
                {"annotator": row.handle, **{name: getattr(row, name) for name in names + more_names}}
                for row in connection.execute(query)
            ]

    def _not_withdrawn(self) -> Select[Any]:
        """Answers of this run that were not withdrawn."""
        taken_back = exists().where(withdrawal.c.answer == answer.c.seq)
        return (
            select(answer, task.c.kind.label("task_kind"), task.c.gold, COUNTS.label("counts"))
            .join(task, task.c.id == answer.c.task)
            .join(question_round, question_round.c.id == task.c.question_round)
            .where(question_round.c.run == self._store.run, ~taken_back)
            .order_by(answer.c.seq)
        )

    def flagged(self) -> dict[str, list[str]]:
        """Names of the flags that are up, by handle."""
        return {row["handle"]: [flag["name"] for flag in row["flags"]] for row in self.people() if row["flags"]}

    def _labels(self) -> Select[Any]:
        """Labels that count: those with a seat, and not of control questions."""
        return self._not_withdrawn().where(COUNTS, task.c.gold.is_(None))


def _question_refusals(task_id: str, rows: Sequence[Any]) -> dict[str, Any]:
    """One question and its refusals."""
    kinds = Counter(row.kind for row in rows)
    flags = [{"handle": row.handle, "reason": row.reason, "note": row.note} for row in rows if row.kind == "flag"]
    texts = {name: getattr(rows[0], name) for name in ("prompt", "first", "second", "state")}
    return {"task": task_id, "skipped": kinds["skip"], "cannot_tell": kinds["abstain"], "flags": flags, **texts}


def _votes(rows: Sequence[Any]) -> list[dict[str, str]]:
    """Each question's labels by person, in the field of `AGREED_ON`."""
    votes: dict[str, dict[str, str]] = {}
    for row in rows:
        if field := AGREED_ON.get(row.task_kind):
            votes.setdefault(row.task, {})[row.annotator] = row.given[field]
    return list(votes.values())


def _whole(rows: Sequence[Any]) -> list[Labels]:
    """Labels by person of each question that has all that it wanted."""
    labels: dict[str, dict[str, dict[str, str]]] = {}
    label_counts: dict[str, int] = {}
    for row in rows:
        labels.setdefault(row.task, {})[row.annotator] = row.given
        label_counts[row.task] = row.needed
    return [by_person for key, by_person in labels.items() if len(by_person) == label_counts[key] > 1]


def _person(
    rows: Sequence[Any], votes: Sequence[dict[str, str]], whole: Sequence[Labels], hasty: tuple[int, int], id_: str
) -> dict[str, Any]:
    labels = [row for row in rows if row.kind == "label"]
    gold = [row for row in labels if row.gold is not None]
    right = sum(all(row.given.get(name) == value for name, value in row.gold.items()) for row in gold)
    helpful, sides = (_sides(labels, names) for names in (("more_helpful",), ("more_helpful", "more_harmful")))
    left, low, high = share_with_interval(sides.count("left"), len(sides))
    record = Record(
        questions=[question for question in whole if id_ in question],
        controls=(len(gold) - right, len(gold)),
        left=(helpful.count("left"), len(helpful)),
        hasty=hasty,
    )
    return {
        "answers": len(labels),
        "refusals": len(rows) - len(labels),
        "median_s": float(np.median([row.ms_spent for row in labels])) / 1000 if labels else None,
        "hasty": hasty[0] / hasty[1] if hasty[1] else None,
        "gold_right": right,
        "gold_total": len(gold),
        "left": left,
        "left_low": low,
        "left_high": high,
        "standing": asdict(leave_one_out(votes, id_)),
        "flags": [asdict(flag) for flag in flags(id_, record)],
    }


def _sides(labels: Sequence[Any], names: Sequence[str]) -> list[str]:
    """Sides of the screen that were chosen in pairs, without ties."""
    screens = [screen_form("pair", row.given, row.swap) for row in labels if row.task_kind == "pair"]
    return [screen[name] for screen in screens for name in names if screen[name] in ("left", "right")]


def _split(rows: Sequence[Any]) -> float:
    """Share of labels that are not the commonest one, averaged over what was asked."""
    shares = []
    for name in STORED[rows[0].task_kind]:
        values = [row.given[name] for row in rows]
        shares.append(1 - max(map(values.count, values)) / len(values))
    return float(np.mean(shares))
