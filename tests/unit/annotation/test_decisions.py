"""Decisions about a batch: every state with every decision, and what the run does then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pddpo_ray.annotation.people.accounts import Role
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue.batch_rows import RoundStatus
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError, Rules
from pddpo_ray.annotation.queue_labeller import Waiting
from pddpo_ray.annotation.review.audit_checks import imbalances
from pddpo_ray.annotation.review.decisions import (
    LEADS_TO,
    NEEDS_BLOCKED,
    BatchState,
    Decision,
    Decisions,
    state_of,
)
from pddpo_ray.cli.main import main
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import ParkedError, RunError
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.people import People
from pddpo_ray.records import HARM, Pair, Prompt, Response, SafetyLabels, Verdict
from pddpo_ray.theory.estimates.estimate_interval import interval
from tests.support.annotation_api import API, FreshService, is_problem
from tests.support.annotation_queue import FreshQueue, people_of, safety_questions
from tests.support.label_estimates import label_estimate
from tests.unit.loop.small_run import run_of

ITEMS = [Response(f"r{n}", Prompt("p", (1,), "how ?"), (3,), f"text {n}", policy_version=2, seed=1) for n in range(3)]
PAIRS = [Pair("q0", ITEMS[0], ITEMS[1]), Pair("q1", ITEMS[1], ITEMS[2])]


def answer(queue: FreshQueue, submission: Submission, count: int) -> None:
    """So many new people say this, each about one question."""
    for _ in range(count):
        person = queue.person(f"person {len(queue.people.all())}")
        lease = queue.leases.lease(person)
        assert isinstance(lease, Lease)
        queue.answers.answer(person, f"key-{person.id}", lease.id, submission)


def batch(queue: FreshQueue, state: BatchState, *, blocked: bool) -> str:
    """A batch of two questions in this state, one of them refused by too many people if it is `blocked`."""
    deadline = queue.now_ms + 60_000
    status = queue.rounds.open(1, "safety", safety_questions(2), labels_each=1, deadline_ms=deadline)
    if blocked:
        # Everybody meets the same first question: it is the most urgent one for all who share a starting point.
        while queue.rounds.status(status.id).blocked == 0:
            answer(queue, Submission("skip", reason="broken"), 1)
    if state is BatchState.OVERDUE:
        queue.wait(61)
    if state in (BatchState.COMPLETE, BatchState.FROZEN):
        while not queue.rounds.status(status.id).complete:
            answer(queue, Submission("label", {"safety": "safe"}), 1)
    if state is BatchState.FROZEN:
        queue.rounds.freeze(status.id)
    if state is BatchState.ACCEPTED:
        queue.rounds.freeze(status.id, accept_missing=True, by="lead")
    if state is BatchState.STOPPED:
        queue.rounds.cancel(status.id, by="lead")
    assert state_of(queue.rounds.status(status.id), queue.now_ms) is state
    return status.id


CAN_BE_BLOCKED = (BatchState.WAITING, BatchState.OVERDUE, BatchState.ACCEPTED, BatchState.STOPPED)


@pytest.mark.slow
@pytest.mark.parametrize("decision", Decision)
@pytest.mark.parametrize(
    ("state", "blocked"), [(state, False) for state in BatchState] + [(state, True) for state in CAN_BE_BLOCKED]
)
def test_every_decision_in_every_state_leads_where_the_table_says_or_is_refused_and_changes_nothing(
    queue: FreshQueue, state: BatchState, blocked: bool, decision: Decision
) -> None:
    id_ = batch(queue, state, blocked=blocked)
    decisions, before = Decisions(queue.store, queue.rules), queue.rounds.status(id_)
    allowed = decision in LEADS_TO[state] and (blocked or decision not in NEEDS_BLOCKED)
    assert (decision.value in decisions.about(before)["choices"]) == allowed
    later = queue.now_ms + 3600_000 if decision is Decision.EXTEND else None
    if not allowed:
        with pytest.raises(QueueError) as error:
            decisions.decide(id_, decision, by="lead", deadline_ms=later)
        assert error.value.problem is Problem.CONFLICT
        assert queue.rounds.status(id_) == before
        return
    after = decisions.decide(id_, decision, by="lead", reason="because", deadline_ms=later)
    assert state_of(after, queue.now_ms) in LEADS_TO[state][decision]
    assert imbalances(queue.store) == []


def test_from_every_state_decisions_lead_to_one_in_which_the_run_goes_on() -> None:
    assert set(LEADS_TO) == set(BatchState)
    served = {BatchState.COMPLETE, BatchState.FROZEN, BatchState.ACCEPTED}
    for state in BatchState:
        seen, reached = set[BatchState](), {state}
        while reached - seen:
            here = (reached - seen).pop()
            seen.add(here)
            for decision, ends in LEADS_TO[here].items():
                if decision not in NEEDS_BLOCKED:
                    reached |= ends
        assert seen & served, state


def labeller(queue: FreshQueue, waiting: Waiting) -> People:
    def never(_: float) -> None:
        raise AssertionError("there was nothing to wait for")

    return people_of(queue, waiting, clock=lambda: queue.now_ms, sleep=never)


def parked(queue: FreshQueue) -> tuple[RoundStatus, RoundStatus]:
    """The batches of a run that has parked: three answers with two labels each wanted, and two pairs."""
    waiting = Waiting(1000.0, park_after_s=0.0)
    for ask in (
        lambda: labeller(queue, waiting).safety(ITEMS, 2, seed=0),
        lambda: labeller(queue, waiting).compare(PAIRS, seed=0),
    ):
        with pytest.raises(ParkedError):
            ask()
    by_purpose = {one.purpose: one for one in queue.rounds.all()}
    return by_purpose["safety"], by_purpose["compare"]


def test_a_run_goes_on_with_an_accepted_batch_and_nothing_is_filled_in(queue: FreshQueue) -> None:
    safety, pairs = parked(queue)
    answer(queue, Submission("label", {"safety": "unsafe"}), 4)
    decisions = Decisions(queue.store, queue.rules)
    outlook = decisions.outlook(queue.rounds.status(safety.id))
    assert outlook is not None
    assert outlook["all_safe"] == pytest.approx(4 / 6)
    assert outlook["all_unsafe"] == pytest.approx(1.0)
    for one in (safety, pairs):
        decisions.decide(one.id, Decision.ACCEPT, by="lead")
    found = labeller(queue, Waiting(1000.0)).safety(ITEMS, 2, seed=0)
    said = [label for labels in found for label in labels.labels]
    assert (said.count(Verdict.UNSAFE), said.count(Verdict.MISSING), len(said)) == (4, 2, 6)
    assert {item.label(HARM) for item in labeller(queue, Waiting(1000.0)).compare(PAIRS, seed=0)} == {Verdict.MISSING}


def test_a_run_goes_on_without_dropped_questions_and_waits_for_the_others(queue: FreshQueue) -> None:
    safety, pairs = parked(queue)
    queue.rounds.cancel(pairs.id, by="test")
    while queue.rounds.status(safety.id).blocked == 0:
        answer(queue, Submission("skip", reason="too_harmful"), 1)
    decisions = Decisions(queue.store, queue.rules)
    missing = queue.rounds.status(safety.id).missing
    after = decisions.decide(safety.id, Decision.DROP_BLOCKED, by="lead")
    assert (after.dropped, after.missing) == (1, missing - 2)
    with pytest.raises(ParkedError):
        labeller(queue, Waiting(1000.0, park_after_s=0.0)).safety(ITEMS, 2, seed=0)
    answer(queue, Submission("label", {"safety": "safe"}), 4)
    found = labeller(queue, Waiting(1000.0)).safety(ITEMS, 2, seed=0)
    assert sorted(labels.labels.count(Verdict.MISSING) for labels in found) == [0, 0, 2]


def test_a_stopped_batch_that_is_reopened_keeps_its_answers(queue: FreshQueue) -> None:
    safety, _ = parked(queue)
    answer(queue, Submission("label", {"safety": "safe"}), 3)
    decisions = Decisions(queue.store, queue.rules)
    decisions.decide(safety.id, Decision.STOP, by="lead", reason="lunch")
    with pytest.raises(RunError, match="lead stopped this batch"):
        labeller(queue, Waiting(1000.0)).safety(ITEMS, 2, seed=0)
    assert decisions.decide(safety.id, Decision.REOPEN, by="lead").counted == 3
    answer(queue, Submission("label", {"safety": "safe"}), 3)
    assert len(labeller(queue, Waiting(1000.0)).safety(ITEMS, 2, seed=0)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("older", [False, True], ids=["today", "batch of an earlier version"])
def test_a_resumed_run_with_another_deadline_has_that_time_from_now_on(queue: FreshQueue, older: bool) -> None:
    parked(queue)
    if older:
        with queue.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE question_round SET waits_s = NULL")
    queue.wait(2000)
    with pytest.raises(RunError, match="6 of 6 labels are missing at the deadline"):
        labeller(queue, Waiting(1000.0)).safety(ITEMS, 2, seed=0)
    with pytest.raises(ParkedError, match="deadline in 10 min"):
        labeller(queue, Waiting(600.0, park_after_s=0.0)).safety(ITEMS, 2, seed=0)
    queue.wait(300)
    with pytest.raises(ParkedError, match="deadline in 5 min"):
        labeller(queue, Waiting(600.0, park_after_s=0.0)).safety(ITEMS, 2, seed=0)


def test_missing_labels_widen_the_estimate_by_what_they_may_say() -> None:
    """By hand: unsafe shares 1/2, 0 and (0 or 1 of the missing) with two labels each."""
    safe, unsafe, missing = Verdict.SAFE, Verdict.UNSAFE, Verdict.MISSING
    labels = [SafetyLabels(item, given) for item, given in zip(ITEMS, [(safe, unsafe), (safe, safe), (unsafe, missing)],
                                                               strict=True)]  # fmt: skip
    found = label_estimate(labels, labels_each=2, cost_max=2.0, kind="rate")
    assert found.value == pytest.approx((0.5 + 0 + 1) / 3)
    assert found.missing == pytest.approx(1 / 6)
    filled = [[*labels[:2], SafetyLabels(ITEMS[2], (unsafe, other))] for other in (safe, unsafe)]
    ends = [interval(label_estimate(one, labels_each=2, cost_max=2.0, kind="rate")) for one in filled]
    mine = interval(found)
    assert mine is not None
    assert all(end is not None and mine[0] <= end[0] and mine[1] >= end[1] for end in ends)


SETTINGS = [
    "rounds=1", "feedback.kind=people", "feedback.responses=8", "limits.cost.labels_each=3",
    "limits.cost={rate: {people: {}}, learned_from: comparisons}", "limits.cost.at_most=0.5",
    "explore.prompts=4", "explore.baseline_answers=4",
    "rollout.candidates=4", "report.tensorboard=false", "report.html=false", "certificate={batch: 8}",
    "people.park_after_s=0",
]  # fmt: skip


@pytest.mark.run
def test_a_whole_run_finishes_on_an_accepted_round_and_says_what_is_missing(tmp_path: Path) -> None:
    config, folder = load("tabular", SETTINGS), tmp_path / "demo"
    with pytest.raises(ParkedError):
        run_recipe(config, folder)
    engine = open_database(folder / "journal.sqlite")
    store = Store(engine, run_of(folder))
    for one in Rounds(store, Rules()).all():
        Decisions(store, Rules()).decide(one.id, Decision.ACCEPT, by="lead", reason="nobody is here")
    result = run_recipe(config, folder, resume=True)
    assert result["rounds"] == 1
    with open_folder(folder) as journal:
        metrics, (step,) = journal.metrics()[1], journal.dual_steps()
    assert (metrics["labels/missing_cost"], metrics["labels/safety"], metrics["labels/missing"]) == (24, 0, 8)
    assert (step.estimate.value, step.estimate.missing) == (1.0, 1.0)
    low, high = interval(step.estimate) or (9.0, 9.0)
    assert low < 1e-9
    assert high > 1 - 1e-9
    engine.dispose()


@pytest.fixture
def decide(run: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def command(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(["annotations", "decide", "--run", str(run), *arguments])
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out + err

    return command


@pytest.mark.slow
def test_the_command_line_lists_extends_and_accepts(run: Path, decide: Callable[..., tuple[int, str]]) -> None:
    assert decide() == (0, "no batch of this run waits for a decision\n")
    engine = open_database(run / "journal.sqlite")
    store = Store(engine, "demo")
    rounds = Rounds(store, Rules())
    safety = rounds.open(1, "safety", safety_questions(2), labels_each=2, deadline_ms=store.clock() - 1)
    code, said = decide()
    assert code == 0
    for word in (
        "1/safety",
        "overdue",
        "4 of 4 labels missing",
        "unsafe 0.0 % to 100.0 %",
        "--extend, --accept, --stop",
    ):
        assert word in said
    for arguments, problem in (
        (("--extend", "soon"), "30min, 2h or 3d"),
        (("--accept", "--stop"), "one decision at a time: --accept or --stop"),
        (("--drop-blocked",), "has no blocked question"),
        (("--batch", "9/safety", "--stop"), "no batch 9/safety"),
    ):
        code, said = decide(*arguments)
        assert (code, said.count("\n")) == (2, 1)
        assert problem in said
    assert decide("--extend", "2h")[0] == 0
    assert 7100_000 < (rounds.status(safety.id).deadline_ms or 0) - store.clock() <= 7200_000
    code, said = decide("--accept", "--by", "lea", "--reason", "enough", "--json")
    assert json.loads(said)["batches"][0]["situation"] == "accepted"
    assert rounds.last_decision(safety.id, "round.freeze") == ("lea", "enough")
    engine.dispose()


def test_a_lead_decides_over_http_and_an_annotator_does_not(service: FreshService) -> None:
    round_ = service.queue.rounds.open(1, "safety", safety_questions(2), labels_each=1)
    lead, path = service.client(Role.LEAD), f"{API}/rounds/{round_.id}"
    assert lead.get(path).json()["choices"] == ["extend", "accept", "stop"]
    later = service.queue.now_ms + 7200_000
    extended = lead.post(f"{path}/decision", json={"decision": "extend", "deadline_ms": later})
    assert (extended.status_code, extended.json()["deadline_ms"]) == (200, later)
    past = lead.post(f"{path}/decision", json={"decision": "extend", "deadline_ms": service.queue.now_ms})
    assert is_problem(past, 422, "malformed")
    assert is_problem(lead.post(f"{path}/decision", json={"decision": "reopen"}), 409, "conflict")
    assert lead.post(f"{path}/decision", json={"decision": "accept"}).json()["situation"] == "accepted"
    event = service.client(Role.ADMIN).get(f"{API}/audit").json()["events"][-1]
    assert (event["action"], event["actor"]) == ("round.freeze", service.people[Role.LEAD].id)
