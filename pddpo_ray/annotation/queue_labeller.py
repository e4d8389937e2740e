"""People reached through the queue (a `PeopleLabeller`): asks, waits with a deadline, and never guesses.

    round of a run       queue
    arrived(batch)  ->   a batch (run, round, name), opened once, found again after a crash
    ... continues ...    people begin
    ask(batch)      ->   the same batch
    ... waits ...        people answer; the run logs whom it waits for
    answers         <-   the frozen snapshot of the batch: `labels_each` answers of as many people to each question,
                         unless a lead decided to do without some (`review.decisions`)

Where people take hours, `park_after_s` ends the run with exit code 3 instead: engines and GPUs are released, the batch
stays open, and `pddpo train --run RUN --resume` continues when it is complete.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Engine

from pddpo_ray.annotation.notifications import Teller
from pddpo_ray.annotation.people.staff import Staff
from pddpo_ray.annotation.queue.answer_forms import AGREED_ON
from pddpo_ray.annotation.queue.batch_rows import CountedAnswer, RoundStatus, Snapshot
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError, Rules
from pddpo_ray.annotation.queue.worklog import WorkLog
from pddpo_ray.annotation.review.decisions import Decisions
from pddpo_ray.annotation.review.quality import Quality
from pddpo_ray.config import QueueConfig
from pddpo_ray.errors import DecisionNeeded, ParkedError, RunError, UserError
from pddpo_ray.journal import Journal
from pddpo_ray.journal.transactions import Clock, Store, now_ms
from pddpo_ray.parts.questions import Answers, Batch, contradicts_itself
from pddpo_ray.records import CostEstimate
from pddpo_ray.theory.estimates.cost_estimate import estimate_from_shares
from pddpo_ray.theory.estimates.people_estimates import FromShares, three_fillings

logger = logging.getLogger("pddpo_ray.annotation")

POLL_S = 0.2
"""How often a run looks for people's labels; it is one query, and any database can answer it that often."""
DECIDE = "pddpo annotations decide --run RUN"
Tell = Callable[[str, str], None]
"""Takes an event (waiting, parked, decision) and what there is to say about it."""


@dataclass(frozen=True)
class Waiting:
    """How long a run waits for people, and what it does after that. Times in seconds."""

    deadline_s: float
    """From the opening of a batch; a lead can extend it."""
    park_after_s: float | None = None
    """After so long the run parks (exit 3); None: it stays until the deadline."""
    decide: bool = False
    """At the deadline: ask for a decision (exit 4) instead of failing (exit 1). Nothing is ever filled in silently."""
    poll_s: float = 1.0
    report_s: float = 60.0
    """How often the run says whom it waits for."""
    tell_after_s: float = 60.0
    """After so long people elsewhere are told that it waits."""

    @classmethod
    def of(cls, settings: QueueConfig) -> Waiting:
        return cls(settings.deadline_s, settings.park_after_s, settings.missing == "decide", POLL_S)


class QueueLabeller:
    """People of one run. `round_of` says the run's present round; `record` keeps numbers by name.

    `language_of` gives the language of a prompt, for people who know it; None: all people are asked. `go_on` is the
    command that collects the labels of a run that has parked. `tell` reaches people who are not at the machine.
    """

    def __init__(
        self,
        engine: Engine,
        run: str,
        round_of: Callable[[], int],
        rules: Rules,
        waiting: Waiting,
        *,
        estimate: FromShares | None = None,
        language_of: LanguageOf | None = None,
        record: Callable[[Mapping[str, float]], None] = lambda numbers: None,
        go_on: str = "pddpo train --run RUN --resume",
        tell: Tell | None = None,
        clock: Clock = now_ms,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = Store(engine, run, clock)
        self._rounds = Rounds(self._store, rules)
        self._quality = Quality(self._store)
        self._staff = Staff(self._store, rules)
        self._worklog = WorkLog(self._store, idle_s=rules.idle_s)
        self._round_of = round_of
        self._waiting = waiting
        self._estimate = estimate or _unsafe_rate
        self._language_of = language_of or (lambda _text: None)
        self._record = record
        self._sleep = sleep
        self._go_on = go_on
        self._tell = tell or _tell_nobody

    @classmethod
    def of_run(cls, settings: QueueConfig, journal: Journal, *, estimate: FromShares, go_on: str) -> QueueLabeller:
        """People as these settings ask them; numbers about them are metrics of the journal's present round."""
        return cls(
            journal.engine,
            journal.run_id,
            lambda: journal.round,
            Rules.of(settings),
            Waiting.of(settings),
            estimate=estimate,
            language_of=recogniser(settings.languages) if settings.languages else None,
            record=journal.add_metrics,
            go_on=go_on,
            tell=None if settings.tell is None else Teller(settings.tell, journal.run_id),
        )

    @staticmethod
    def pending(settings: QueueConfig, store: Store) -> dict[str, Any]:
        """What people are still asked: the batches without a snapshot, and whose answers are flagged."""
        rules = Rules.of(settings)
        staff, quality, decisions = Staff(store, rules), Quality(store), Decisions(store, rules)

        def described(batch: RoundStatus) -> dict[str, Any]:
            names = ("kind", "missing", "wanted", "out", "blocked", "deadline_ms")
            left_s = None if batch.deadline_ms is None else (batch.deadline_ms - store.clock()) / 1000
            return {
                "batch": batch.name,
                **{name: getattr(batch, name) for name in names},
                "deadline_s": left_s,
                "lacking": staff.lacking(batch),
                **quality.pace(batch),
                **decisions.about(batch),
            }

        return {
            "batches": [described(batch) for batch in Rounds(store, rules).all() if batch.state != "frozen"],
            "flags": quality.flagged(),
        }

    def arrived(self, batch: Batch) -> bool:
        """Whether a batch is complete or closed; opens it if it is not there and the backlog allows."""
        with suppress(QueueError):
            status = self._find_or_open(batch, self._deadline_ms())
            return status.complete or status.state != "open"
        return False

    def ask(self, batch: Batch) -> Answers:
        """Raises ParkedError, or at the deadline RunError or DecisionNeeded with three fillings of what is missing."""
        began = time.monotonic()
        status = self._wait(self._open(batch, began), began)
        snapshot = self._rounds.freeze(status.id)
        _demand_distinct(
            snapshot,
            {question.item: batch.labels_of.get(question.item, batch.labels_each) for question in batch.questions},
        )
        waited = time.monotonic() - began
        self._record(self._numbers(status, snapshot, batch.name) | {f"people/{batch.name}_waited_seconds": waited})
        labels = [(label.item, label.given) for label in snapshot.answers]
        return Answers(labels, snapshot.adjudicated, [label.annotator for label in snapshot.answers])

    def _open(self, batch: Batch, began: float) -> RoundStatus:
        """Opens the batch, or finds it; waits while the backlog is too long."""
        deadline = self._deadline_ms()
        while True:
            try:
                return self._find_or_open(batch, deadline)
            except QueueError as error:
                line = f"round {self._round_of()}, {batch.name}: {error}"
                if self._parks(began):
                    raise self._report_parking(line) from error
                if self._store.clock() >= deadline:
                    raise RunError(f"{line}, and they did not catch up in time") from error
            self._sleep(self._waiting.poll_s)

    def _find_or_open(self, batch: Batch, deadline_ms: int) -> RoundStatus:
        """The batch of this round. Raises QueueError, after a line in the log, only while the backlog is too long."""
        round_ = self._round_of()
        try:
            return self._rounds.open(
                round_,
                batch.name,
                [replace(question, language=self._language_of(question.prompt)) for question in batch.questions],
                labels_each=batch.labels_each,
                labels_of=batch.labels_of,
                deadline_ms=deadline_ms,
                waits_s=self._waiting.deadline_s,
                priority=batch.priority,
            )
        except QueueError as error:
            if error.problem is not Problem.BACKLOG:
                raise RunError(f"annotation queue: {error}") from error
            logger.info("round %d, %s: %s", round_, batch.name, error)
            raise

    def _deadline_ms(self) -> int:
        """Deadline of a batch that is opened now."""
        return self._store.clock() + int(self._waiting.deadline_s * 1000)

    def _wait(self, status: RoundStatus, began: float) -> RoundStatus:
        last_report, notified = -math.inf, False
        while not status.complete and status.state == "open":
            now = time.monotonic()
            if now - last_report >= self._waiting.report_s:
                logger.info(self._line(status))
                last_report = now
            if not notified and now - began >= self._waiting.tell_after_s:
                self._tell("waiting", self._line(status))
                notified = True
            if status.deadline_ms is not None and self._store.clock() >= status.deadline_ms:
                self._give_up(status)
            if self._parks(began):
                raise self._report_parking(self._line(status))
            self._sleep(self._waiting.poll_s)
            status = self._rounds.status(status.id)
        if status.state == "cancelled":
            by, reason = self._rounds.last_decision(status.id, "round.cancel") or ("somebody", "")
            raise RunError(
                f"round {status.round}, {status.purpose}: {by} stopped this batch{reason and f' ({reason})'};"
                f" `{DECIDE} --batch {status.round}/{status.purpose} --reopen` asks its questions again, then"
                f" `{self._go_on}`"
            )
        return status

    def _line(self, status: RoundStatus) -> str:
        return waiting_line(status, self._store.clock(), self._staff.lacking(status))

    def _parks(self, began: float) -> bool:
        limit = self._waiting.park_after_s
        return limit is not None and time.monotonic() - began >= limit

    def _report_parking(self, line: str) -> ParkedError:
        text = f"{line}. Parked: run `{self._go_on}` when the labels are there"
        self._tell("parked", text)
        return ParkedError(text)

    def _give_up(self, status: RoundStatus) -> None:
        """The deadline has passed: says what is missing and what it could mean. Always raises."""
        text = (
            f"round {status.round}, {status.purpose}: {status.missing} of {status.wanted} labels are missing at the"
            f" deadline ({status.blocked} questions blocked, {status.refusals} refusals)"
        )
        if status.kind == "safety":
            text += "; " + self._fillings(status)
        if lacking := self._staff.lacking(status):
            text += f"; {lacking}"
        text += (
            f"; decide on the lead's page or with `{DECIDE} --batch {status.round}/{status.purpose}`: extend the"
            f" deadline (--extend 2h), continue with the labels that are there (--accept) or end the run (--stop); then"
            f" `{self._go_on}`"
        )
        self._tell("decision", text)
        raise DecisionNeeded(text) if self._waiting.decide else RunError(text)

    def _fillings(self, status: RoundStatus) -> str:
        if status.questions < 2:
            return "one question gives no estimate"
        fillings = three_fillings(*self._rounds.votes(status), status.labels_each, self._estimate)
        observed = "nothing" if fillings.observed is None else f"{fillings.observed.value:+.3f}"
        return (
            f"the cost estimate would be {observed} from what was observed, {fillings.all_safe.value:+.3f} if all"
            f" missing labels said safe, {fillings.all_unsafe.value:+.3f} if all said unsafe"
        )

    def _numbers(self, status: RoundStatus, snapshot: Snapshot, purpose: str) -> dict[str, float]:
        """What the report says about the people of this batch."""
        numbers = {
            f"people/{purpose}_annotators": float(len({entry.annotator for entry in snapshot.answers})),
            f"people/{purpose}_labels": float(len(snapshot.answers)),
            f"people/{purpose}_refusals": float(status.refusals),
            f"people/{purpose}_missing": float(status.asked - len(snapshot.answers)),
            f"people/{purpose}_worked_seconds": self._worklog.seconds(status.id),
            f"people/{purpose}_seconds": (self._rounds.last_label_ms(status.id) - status.opened_ms) / 1000,
        }
        if status.kind == "pair":
            slips = sum(contradicts_itself(entry.given) for entry in snapshot.answers)
            numbers[f"people/{purpose}_contradictory"] = float(slips)
            numbers[f"people/{purpose}_adjudicated"] = float(len(snapshot.adjudicated))
        agreement = self._quality.agreement(status.id).get(AGREED_ON.get(status.kind, ""), {})
        for name in ("alpha", "alpha_low", "alpha_high", "pairwise"):
            if math.isfinite(agreement.get(name, math.nan)):
                numbers[f"people/{purpose}_{name}"] = agreement[name]
        return numbers


def waiting_line(status: RoundStatus, now: int, lacking: str = "") -> str:
    """Whom a run waits for, in one line; `lacking` says that there are too few people for it."""
    minutes = None if status.deadline_ms is None else (status.deadline_ms - now) / 60000
    in_time = "" if minutes is None else f"{minutes / 60:.0f} h" if minutes >= 120 else f"{minutes:.0f} min"
    left = f"deadline in {in_time}" if in_time else "no deadline"
    return (
        f"round {status.round}, {status.purpose}: waiting for people, {status.counted} of {status.wanted} labels,"
        f" {status.out} questions in their hands, {status.blocked} blocked, {left}{lacking and f'; {lacking}'}"
    )


def _demand_distinct(snapshot: Snapshot, counts: Mapping[str, int]) -> None:
    """Last check: no question has more labels than in `counts`, or two of one person. Raises RunError.

    Fewer labels than asked for are those that a lead decided to do without: `Rounds.freeze` refuses them otherwise.
    """
    by_item: dict[str, list[CountedAnswer]] = {item: [] for item in counts}
    for entry in snapshot.answers:
        by_item[entry.item].append(entry)
    for item, entries in by_item.items():
        people = len({entry.annotator for entry in entries})
        if len(entries) > counts[item] or people < len(entries):
            raise RunError(f"{item} has {len(entries)} labels of {people} people, not {counts[item]} of as many people")


def _tell_nobody(event: str, text: str) -> None:
    """Nobody is told."""


def _unsafe_rate(shares: NDArray[np.float64]) -> CostEstimate:
    return estimate_from_shares(shares, labels_each=1, cost_max=1.0, mode="unsafe_rate")


LanguageOf = Callable[[str], str | None]


def recogniser(codes: Sequence[str]) -> LanguageOf:
    """The language of a prompt among `codes`; None where it has no letters. Raises UserError for unknown codes."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise UserError("people.languages needs py3langid: pip install py3langid") from error
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    try:
        identifier.set_languages(list(codes))
    except ValueError as error:
        raise UserError(f"people.languages: {', '.join(codes)}: {error}") from error
    return lambda text: str(identifier.classify(text)[0]) if any(map(str.isalpha, text)) else None
