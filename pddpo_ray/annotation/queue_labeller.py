"""People as a source of labels (a `Labeller`): asks through the queue, waits with a deadline, and never guesses.

    round of a run            queue
    open_safety(...)   ->     a batch (run, round, "safety"), opened once, found again after a crash
    ... continues ...         people begin
    safety(items, M)   ->     the same batch
    ... waits ...             people answer; the run logs whom it waits for
    labels             <-     the frozen snapshot of the batch: exactly M labels of M people each, unless a lead decided
                              to do without some (annotation.decisions): those are MISSING

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

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Engine

from pddpo_ray.annotation.languages import LanguageOf
from pddpo_ray.annotation.quality import Quality
from pddpo_ray.annotation.questions import (
    AGREED_ON,
    TIE,
    UNKNOWN_RISK,
    Question,
    contradicts_itself,
    pair_question,
    safety_question,
    value_of,
)
from pddpo_ray.annotation.queue_rules import Problem, QueueError, Rules
from pddpo_ray.annotation.risks import RiskOf
from pddpo_ray.annotation.rounds import CountedAnswer, Rounds, RoundStatus, Snapshot
from pddpo_ray.annotation.staff import Staff
from pddpo_ray.annotation.worklog import WorkLog
from pddpo_ray.errors import DecisionNeeded, ParkedError, RunError
from pddpo_ray.journal.transactions import Clock, Store, now_ms
from pddpo_ray.records import HARM, CostEstimate, LabelledPair, Pair, Response, SafetyLabels, Verdict
from pddpo_ray.theory.cost_estimate import estimate_from_shares
from pddpo_ray.theory.people_estimates import FromShares, three_fillings
from pddpo_ray.theory.seeds import generator

logger = logging.getLogger("pddpo_ray.annotation")

SIDE = {"first": Verdict.FIRST, "second": Verdict.SECOND, TIE: Verdict.ABSTAIN}
DECIDE = "pddpo annotations decide --run RUN"
Tell = Callable[[str, str], None]
"""Takes an event (waiting, parked, decision) and what there is to say about it."""
SAFETY_PRIORITY = 1
"""Of the two open batches of a round it comes first: its questions want several different people."""


@dataclass(frozen=True)
class Overlap:
    """Some pairs go to several people, so that their agreement is known."""

    share: float = 0.0
    people: int = 3

    def drawn(self, pairs: Sequence[Pair], *seed: int | str) -> dict[str, int]:
        """Labels wanted by each pair that is drawn, by its id: the nearest number to the share of them all."""
        count = round(self.share * len(pairs)) if self.people > 1 else 0
        chosen = generator(*seed, "overlap").permutation(len(pairs))[:count]
        return {pairs[index].id: self.people for index in chosen}


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


class PeopleLabeller:
    """Labels by people for one run. `round_of` says the run's present round; `record` keeps numbers by name.

    `risk_of` gives the chance that an answer is harmful, for people who opted out of such texts: None if nobody knows;
    `language_of` the language that one has to know for a prompt: None asks all people.
    Where a round has several batches of safety questions, `part_of` ends the name of the present one. `go_on` is the
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
        overlap: Overlap | None = None,
        estimate: FromShares | None = None,
        risk_of: RiskOf | None = None,
        language_of: LanguageOf | None = None,
        record: Callable[[Mapping[str, float]], None] = lambda numbers: None,
        part_of: Callable[[], str] = lambda: "",
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
        self._overlap = overlap or Overlap()
        self._estimate = estimate or _unsafe_rate
        self._risk_of = risk_of
        self._language_of = language_of or (lambda _text: None)
        self._record = record
        self._sleep = sleep
        self._part_of, self._go_on = part_of, go_on
        self._tell = tell or _nobody

    def open_safety(self, items: Sequence[Response], labels_each: int, seed: int) -> None:
        """Opens the questions that `safety` waits for, so that people can begin; not while the backlog is too long."""
        self.safety_arrived(items, labels_each, seed)

    def safety_arrived(self, items: Sequence[Response], labels_each: int, seed: int) -> bool:
        """Whether `safety` has nothing to wait for."""
        questions = self._safety_questions(items)
        return self._arrived(f"safety{self._part_of()}", questions, labels_each, SAFETY_PRIORITY)

    def safety(self, items: Sequence[Response], labels_each: int, seed: int) -> list[SafetyLabels]:
        """`labels_each` labels of different people for every answer; MISSING where a lead decided to do without. The
        seed is not used.

        Raises ParkedError, or at the deadline RunError or DecisionNeeded with three fillings of what is missing.
        """
        questions = self._safety_questions(items)
        snapshot = self._collect(f"safety{self._part_of()}", questions, labels_each, SAFETY_PRIORITY)
        labels: dict[str, list[Verdict]] = {item.id: [] for item in items}
        for entry in snapshot.answers:
            labels[entry.item].append(Verdict(entry.given["safety"]))
        lacking = {name: (Verdict.MISSING,) * (labels_each - len(mine)) for name, mine in labels.items()}
        return [SafetyLabels(item, (*labels[item.id], *lacking[item.id])) for item in items]

    def open_about(self, questions: Sequence[Question], labels_each: int, batch: str) -> None:
        """Opens the questions that `about` waits for, so that people can begin; not while the backlog is too long."""
        asked = self._in_languages(questions)
        with suppress(QueueError):
            self._find_or_open(batch, asked, labels_each, SAFETY_PRIORITY, self._deadline_ms())

    def about_arrived(self, questions: Sequence[Question], labels_each: int, batch: str) -> bool:
        """Whether `about` has nothing to wait for."""
        return self._arrived(batch, self._in_languages(questions), labels_each, SAFETY_PRIORITY)

    def about(self, questions: Sequence[Question], labels_each: int, batch: str) -> list[float | None]:
        """What `labels_each` different people say to each question, on average: the share of yes or of wins (a tie is
        a half), or the mean of their numbers.

        None where a lead decided to do without some of a question's labels. Raises as `safety` does.
        """
        snapshot = self._collect(batch, self._in_languages(questions), labels_each, SAFETY_PRIORITY)
        said: dict[str, list[float]] = {one.item: [] for one in questions}
        for entry in snapshot.answers:
            said[entry.item].append(value_of(entry.given))
        return [sum(mine) / labels_each if len(mine) == labels_each else None for mine in said.values()]

    def open_compare(self, pairs: Sequence[Pair], seed: int) -> None:
        """Opens the questions that `compare` waits for, so that people can begin; not while the backlog is too long."""
        self.comparisons_arrived(pairs, seed)

    def comparisons_arrived(self, pairs: Sequence[Pair], seed: int) -> bool:
        """Whether `compare` has nothing to wait for."""
        return not pairs or self._arrived("compare", self._pair_questions(pairs), 1, 0, self._several(pairs))

    def compare(self, pairs: Sequence[Pair], seed: int) -> list[LabelledPair]:
        """One label of every pair: what a lead decided where people differ, else the first that arrived. A tie is an
        abstention and enters neither data set, nor does a missing label, nor an answer that contradicts itself.

        Where a round's candidates are all alike it has no pair, and nobody is asked."""
        if not pairs:
            return []
        snapshot = self._collect("compare", self._pair_questions(pairs), 1, 0, self._several(pairs))
        given = {entry.item: entry.given for entry in reversed(snapshot.answers)} | dict(snapshot.adjudicated)
        return [_labelled(pair, given.get(pair.id)) for pair in pairs]

    def _pair_questions(self, pairs: Sequence[Pair]) -> list[Question]:
        first, second = (self._risks([getattr(pair, side) for pair in pairs]) for side in ("first", "second"))
        asked = [pair_question(pair, risk=max(risks)) for pair, *risks in zip(pairs, first, second, strict=True)]
        return self._in_languages(asked)

    def _several(self, pairs: Sequence[Pair]) -> dict[str, int]:
        """Pairs of this round that go to several people, and to how many."""
        return self._overlap.drawn(pairs, self._round_of())

    def _safety_questions(self, items: Sequence[Response]) -> list[Question]:
        risks = self._risks(items)
        return self._in_languages([safety_question(item, risk=risk) for item, risk in zip(items, risks, strict=True)])

    def _in_languages(self, questions: Sequence[Question]) -> list[Question]:
        return [replace(one, language=self._language_of(one.prompt)) for one in questions]

    def _risks(self, items: Sequence[Response]) -> list[float]:
        """How likely each answer is harmful, where something in the run can tell."""
        if self._risk_of is None or not items:
            return [UNKNOWN_RISK] * len(items)
        return [float(risk) for risk in self._risk_of(items)]

    def _collect(
        self,
        purpose: str,
        questions: Sequence[Question],
        labels_each: int,
        priority: int,
        labels_of: Mapping[str, int] | None = None,
    ) -> Snapshot:
        began, wanted = time.monotonic(), labels_of or {}
        status = self._open(purpose, questions, labels_each, wanted, priority, began)
        status = self._wait(status, began)
        snapshot = self._rounds.freeze(status.id)
        _demand_distinct(snapshot, {one.item: wanted.get(one.item, labels_each) for one in questions})
        waited = time.monotonic() - began
        self._record(self._numbers(status, snapshot, purpose) | {f"people/{purpose}_waited_seconds": waited})
        return snapshot

    def _open(
        self,
        purpose: str,
        questions: Sequence[Question],
        labels_each: int,
        labels_of: Mapping[str, int],
        priority: int,
        began: float,
    ) -> RoundStatus:
        """Opens the batch, or finds it; waits while the backlog is too long."""
        deadline = self._deadline_ms()
        while True:
            try:
                return self._find_or_open(purpose, questions, labels_each, priority, deadline, labels_of)
            except QueueError as error:
                line = f"round {self._round_of()}, {purpose}: {error}"
                if self._parks(began):
                    raise self._parked(line) from error
                if self._store.clock() >= deadline:
                    raise RunError(f"{line}, and they did not catch up in time") from error
            self._sleep(self._waiting.poll_s)

    def _find_or_open(
        self,
        purpose: str,
        questions: Sequence[Question],
        labels_each: int,
        priority: int,
        deadline_ms: int,
        labels_of: Mapping[str, int] | None = None,
    ) -> RoundStatus:
        """The batch of this round. Raises QueueError, after a line in the log, only while the backlog is too long."""
        round_ = self._round_of()
        try:
            return self._rounds.open(
                round_,
                purpose,
                questions,
                labels_each=labels_each,
                labels_of=labels_of,
                deadline_ms=deadline_ms,
                waits_s=self._waiting.deadline_s,
                priority=priority,
            )
        except QueueError as error:
            if error.problem is not Problem.BACKLOG:
                raise RunError(f"annotation queue: {error}") from error
            logger.info("round %d, %s: %s", round_, purpose, error)
            raise

    def _arrived(
        self,
        purpose: str,
        questions: Sequence[Question],
        labels_each: int,
        priority: int,
        labels_of: Mapping[str, int] | None = None,
    ) -> bool:
        """Whether a batch is complete or closed; opens it if it is not there and the backlog allows."""
        with suppress(QueueError):
            status = self._find_or_open(purpose, questions, labels_each, priority, self._deadline_ms(), labels_of)
            return status.complete or status.state != "open"
        return False

    def _deadline_ms(self) -> int:
        """Deadline of a batch that is opened now."""
        return self._store.clock() + int(self._waiting.deadline_s * 1000)

    def _wait(self, status: RoundStatus, began: float) -> RoundStatus:
        said, told = -math.inf, False
        while not status.complete and status.state == "open":
            now = time.monotonic()
            if now - said >= self._waiting.report_s:
                logger.info(self._line(status))
                said = now
            if not told and now - began >= self._waiting.tell_after_s:
                self._tell("waiting", self._line(status))
                told = True
            if status.deadline_ms is not None and self._store.clock() >= status.deadline_ms:
                self._give_up(status)
            if self._parks(began):
                raise self._parked(self._line(status))
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

    def _parked(self, line: str) -> ParkedError:
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
    left = "no deadline" if status.deadline_ms is None else f"deadline in {(status.deadline_ms - now) / 60000:.0f} min"
    return (
        f"round {status.round}, {status.purpose}: waiting for people, {status.counted} of {status.wanted} labels,"
        f" {status.out} questions in their hands, {status.blocked} blocked, {left}{lacking and f'; {lacking}'}"
    )


def _labelled(pair: Pair, given: Mapping[str, str] | None) -> LabelledPair:
    if given is None:
        return LabelledPair(pair, Verdict.MISSING, {HARM: Verdict.MISSING})
    if contradicts_itself(given):
        return LabelledPair(pair, Verdict.ABSTAIN, {HARM: Verdict.ABSTAIN})
    return LabelledPair(pair, SIDE[given["more_helpful"]], {HARM: SIDE[given["more_harmful"]]})


def _demand_distinct(snapshot: Snapshot, wanted: Mapping[str, int]) -> None:
    """Last check: no question has more labels than `wanted`, or two of one person. Raises RunError.

    Fewer labels than asked for are those that a lead decided to do without: `Rounds.freeze` refuses them otherwise.
    """
    by_item: dict[str, list[CountedAnswer]] = {item: [] for item in wanted}
    for entry in snapshot.answers:
        by_item[entry.item].append(entry)
    for item, entries in by_item.items():
        people = len({entry.annotator for entry in entries})
        if len(entries) > wanted[item] or people < len(entries):
            raise RunError(f"{item} has {len(entries)} labels of {people} people, not {wanted[item]} of as many people")


def _nobody(event: str, text: str) -> None:
    """Nobody is told."""


def _unsafe_rate(shares: NDArray[np.float64]) -> CostEstimate:
    return estimate_from_shares(shares, labels_each=1, cost_max=1.0, mode="unsafe_rate")
