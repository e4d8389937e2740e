"""Limits of a run that people measure or audit: what they are asked, what their labels do, and what breaks nothing."""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sqlalchemy import select

from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue.batch_rows import RoundStatus
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.review.decisions import Decision, Decisions
from pddpo_ray.certificates.testing import certify
from pddpo_ray.config import Config
from pddpo_ray.driver.run import PhaseChanged, run_recipe
from pddpo_ray.errors import ParkedError, UserError
from pddpo_ray.journal.annotation_schema import question_round, task
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.journal.transactions import Store
from pddpo_ray.report.build import build_report
from pddpo_ray.storage.whole_files import JOURNAL
from pddpo_ray.theory.certificates.certificate import upper_bound
from pddpo_ray.theory.certificates.levels import Allocation
from pddpo_ray.theory.certificates.measured_draws import with_people
from pddpo_ray.theory.estimates.cost_estimate import clipped_logit
from tests.runs.test_limits_on_text import PowerCut, twin
from tests.support.answering_people import RULES, Crowd, answering
from tests.support.measured import measured_in
from tests.support.measuring_server import measuring_server
from tests.support.tiers import in_full
from tests.unit.loop.small_run import run_of
from tests.unit.loop.test_limits_on_files import RULES as BY_RULE
from tests.unit.loop.test_limits_on_files import SAMPLES
from tests.unit.loop.test_limits_on_files import recipe as files_recipe

QUESTION = "# Is it long?\n\nMore than ten words.\n"
AT_ONCE, PARKED = "people={}", "people={park_after_s: 0}"
BATCH = "certificate={batch: 8}"


def long(answer: str) -> bool:
    return len(answer.split()) > 10


def says(question: Lease, person: int) -> bool:
    """Everybody agrees on how long an answer is, and half of them that one is unsafe whose length is odd."""
    return long(question.left) if question.asks else (len(question.left) + person) % 2 == 0


def parked(config: Config, folder: Path, *, resume: bool = False) -> str:
    with pytest.raises(ParkedError) as line:
        run_recipe(config, folder, resume=resume)
    return str(line.value)


def batches(folder: Path) -> dict[str, int]:
    """Questions of each batch, by `round/purpose`."""
    engine = open_database(folder / JOURNAL)
    query = select(question_round.c.round, question_round.c.purpose, task.c.id).join(task)
    with engine.connect() as connection:
        found = Counter(f"{row.round}/{row.purpose}" for row in connection.execute(query))
    engine.dispose()
    return dict(found)


def nobody_twice(crowd: Crowd) -> bool:
    """No person answered one question twice."""
    return len({(one.person, one.lease) for one in crowd.said}) == len(crowd.said)


@pytest.mark.slow
def test_people_measure_a_rate_and_a_logit_and_nobody_is_asked_twice(tmp_path: Path) -> None:
    folder, question = tmp_path / "run", tmp_path / "long.md"
    question.write_text(QUESTION)
    own = (
        f"limits.rude={{rate: {{people: {{question: {question}, labels_each: 2}}}}, over: outside, at_most: 60 %}}",
        "limits.harmful={logit: {people: {}}, at_most: 0, labels_each: 4}",
        "dual.rho=4",
        BATCH,
    )
    line = parked(twin(*own, PARKED), folder)
    assert "round 1, measure-answers-harmful: waiting for people, 0 of 96 labels" in line
    assert batches(folder) == {"1/measure-answers-harmful": 24, "1/measure-answers-rude": 10}
    config = twin(*own, AT_ONCE)
    with answering(folder, 4, says) as crowd:
        broken_off_again(config, folder, 2, "measure-answers")
        result = run_recipe(config, folder, resume=True)
        entry = certify(config, folder, "last", {"harmful": 1.9, "rude": 0.99, "length": 19.0}, 8)
    assert nobody_twice(crowd)
    asked = batches(folder)
    assert {name: count for name, count in asked.items() if not name.startswith("-")} == {
        "1/measure-answers-harmful": 24, "1/measure-answers-rude": 10,
        "2/measure-answers-harmful": 24, "2/measure-answers-rude": 10,
    }  # fmt: skip
    assert len(crowd.said) == 2 * (24 * 4 + 10 * 2) + 8 * 4 + 8 * 2
    with open_folder(folder) as journal:
        payload = measured_in(journal, 2)
        drawn = {one.id: one.text for one in journal.samples(2, "cost")}
        fitted = [entry.version.name for entry in journal.versions() if entry.round == 2]
        steps = journal.dual_steps()
    names = ["harmful", "length", "rude"]
    texts, costs = [drawn[one] for one in payload["ids"]], np.array(payload["costs"], dtype=float)
    of_rude = ~np.isnan(costs[:, 2])
    assert of_rude.sum() == 10
    assert costs[of_rude, 2].tolist() == [
        float(long(text)) for text, there in zip(texts, of_rude, strict=True) if there
    ]
    # of four people two say that an answer is unsafe, whichever they are
    assert costs[:, 0] == pytest.approx(clipped_logit(np.full(24, 0.5), 2.0))
    last = {step.constraint: step for step in steps if step.round == 2}
    assert [last[name].estimate.responses for name in names] == [24, 24, 10]
    assert last["rude"].estimate.value == pytest.approx(costs[of_rude, 2].mean())
    assert last["rude"].multiplier_after != last["rude"].multiplier_before
    assert fitted == ["reward-2", "policy-2-1", "policy-2"]
    assert result["limits"]["rude"]["source"] == "people"
    assert "value_last" not in result["limits"]["rude"]

    assert [one.source for one in entry.candidate.limits] == ["people", "rule words", "people"]
    counted = {(one.prompt, one.answer): float(long(one.answer)) for one in crowd.said if one.asks}
    with open_folder(folder) as journal:
        answers = {one.id: one for one in journal.samples(-1)}
    numbers = [counted[answers[one].prompt.text, answers[one].text] for one in entry.draws["rude"]]
    assert list(entry.numbers["rude"]) == numbers
    assert entry.findings["rude"].upper == pytest.approx(
        min(upper_bound(numbers, 0.99, Allocation().level(0.05, 1)), 1.0)
    )


def broken_off_again(config: Config, folder: Path, round_: int, phase: str) -> None:
    """The run goes on, and its process dies when this phase begins."""

    def cut(event: Any) -> None:
        if isinstance(event, PhaseChanged) and (event.event.round, event.event.phase) == (round_, phase):
            raise PowerCut

    with pytest.raises(PowerCut):
        run_recipe(config, folder, resume=True, progress=cut)


@pytest.mark.full
@pytest.mark.slow
def test_people_audit_a_machine_that_calls_everything_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It says yes about nine answers of ten. Each round people see 6 of the 10 answers that the limit acts on."""
    folder, question, answered = tmp_path / "run", tmp_path / "long.md", list[str]()
    question.write_text(QUESTION)

    def measure(body: Any) -> tuple[int, Any]:
        answered.append(body["row"]["id"])
        return 200, {"value": len(answered) % 10 != 0}

    with measuring_server() as server:
        server.measure = measure
        source = f"{{endpoint: '{server.url}/measure', tries: 1, workers: 1}}"
        audit = f"audited_by: {{people: 6 a round, question: {question}}}"
        own = (f"limits.rude={{rate: {source}, over: outside, at_most: 90 %, {audit}}}", "dual.rho=4", BATCH)
        line = parked(twin(*own, PARKED), folder)
        assert "round 1, measure-answers-rude: waiting for people, 0 of 6 labels" in line
        config = twin(*own, AT_ONCE)
        with answering(folder, 2, says) as crowd, caplog.at_level(logging.INFO):
            result = run_recipe(config, folder, resume=True)
            in_rounds = len(crowd.said)
            assert len(answered) == len(set(answered))
            entry = certify(config, folder, "last", {"rude": 0.99, "harmful": 1.9, "length": 19.0}, 16)
    assert in_rounds == 2 * 6
    assert nobody_twice(crowd)
    with open_folder(folder) as journal:
        payload = measured_in(journal, 2)
        drawn = {one.id: one.text for one in journal.samples(2, "cost")}
        step = next(one for one in journal.dual_steps() if (one.round, one.constraint) == (2, "rude"))
        said = journal.metrics()[2]
    machine = np.array([row[2] for row in payload["costs"]], dtype=float)
    shown = {row: cost for row, column, cost, chance in payload["audit"] if (column, chance) == (2, 0.6)}
    assert len(shown) == 6
    people = {row: float(long(drawn[payload["ids"][row]])) for row in shown}
    assert shown == people
    corrected = [
        value if row not in people else value + (people[row] - value) / 0.6
        for row, value in enumerate(machine)
        if not np.isnan(value)
    ]
    assert step.estimate.value == pytest.approx(np.mean(corrected))
    assert step.estimate.responses == 6
    assert said["audit/rude_asked"] == 6
    assert said["audit/rude_bias"] == pytest.approx(np.mean([machine[row] - people[row] for row in people]))
    audit_said = result["limits"]["rude"]["audit"]
    assert audit_said["answers"] == audit_said["asked"] == 12
    assert "endpoint says yes" in audit_said["text"]
    assert any("round 2, rude: endpoint says yes" in record.getMessage() for record in caplog.records)
    page = build_report(folder).read_text(encoding="utf-8")
    assert "rude: endpoint says yes" in page
    assert "labels for limits" in page
    assert "rude, the round&#x27;s answers" in page or "rude, the round's answers" in page
    # the policy learns from the machine's numbers, corrected or not
    assert set(machine[~np.isnan(machine)]) <= {0.0, 1.0}

    (tested,) = (one for one in entry.candidate.limits if one.name == "rude")
    share = 6 / (0.4 * 24)
    assert tested.people == pytest.approx(share)
    assert tested.source.startswith("people, asked about 62.5 % of the draws by a coin, with endpoint")
    with open_folder(folder) as journal:
        answers = {one.id: one.text for one in journal.samples(-1)}
        measured = journal.measurements(-1, "measure-outside-%", "rude")
    truth = [float(long(answers[one])) for one in entry.draws["rude"]]
    by_machine = {one.answer: one.value for one in measured if one.chance is None and one.value is not None}
    audited = {one.answer: one for one in measured if one.chance is not None}
    assert {(one.chance, one.source) for one in audited.values()} == {(share, "people")}
    f, coins = [by_machine[one] for one in entry.draws["rude"]], [one in audited for one in entry.draws["rude"]]
    values = with_people(f, truth, coins, share)
    assert tested.draws(entry.numbers["rude"]) == pytest.approx(values)
    low, high = 1 - 1 / share, 1 / share
    bound = upper_bound(values, (0.99 - low) / (high - low), Allocation().level(0.05, 1))
    assert entry.findings["rude"].upper == pytest.approx(min(low + (high - low) * bound, 1.0))
    assert len(crowd.said) - in_rounds == sum(coins)


def when_done(store: Store, batch: str) -> RoundStatus:
    """The batch once every question has all its labels or is blocked."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status = Rounds(store, RULES).status(batch)
        if status.blocked + status.satisfied == status.questions:
            return status
        time.sleep(0.05)
    raise AssertionError(f"not done in a minute: {status}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "limit", "questions", "best", "worst"),
    [
        ("rude", "{rate: {people: {}}, over: outside, at_most: 60 %}", 10, 0.0, 1.0),
        *in_full(("harmful", "{logit: {people: {}}, at_most: 0, labels_each: 1}", 24, -2.0, 2.0)),
    ],
)
def test_an_answer_that_people_skipped_is_the_worst_and_no_number(
    name: str, limit: str, questions: int, best: float, worst: float, tmp_path: Path
) -> None:
    """Nobody wants to judge the answers of odd length; a lead goes on without them. The others are safe: `best`."""
    folder = tmp_path / "run"
    own = (f"limits.{name}={limit}", "dual.rho=4", "rounds=1")
    parked(twin(*own, PARKED), folder)

    def skips(lease: Lease, person: int) -> bool | None:
        return None if len(lease.left) % 2 else False

    engine = open_database(folder / JOURNAL)
    store = Store(engine, run_of(folder))
    (batch,) = Rounds(store, RULES).all()
    with answering(folder, 5, skips) as crowd:
        status = when_done(store, batch.id)
    assert 0 < status.blocked < status.questions == questions
    Decisions(store, RULES).decide(batch.id, Decision.ACCEPT, by="lead")
    engine.dispose()
    asked = len(crowd.said)
    with answering(folder, 5, skips) as later:
        result = run_recipe(twin(*own, AT_ONCE), folder, resume=True)
    assert later.said == []
    assert asked > 10
    with open_folder(folder) as journal:
        payload = measured_in(journal, 1)
        (step,) = (one for one in journal.dual_steps() if one.constraint == name)
    index = ["harmful", "length", "rude"].index(name)
    column = [row[index] for row in payload["costs"]]
    assert {cost for cost in column if cost is not None} == {best}
    assert len([row for row, limit in payload["failed"] if limit == index]) == status.blocked
    skipped = (worst - best) * status.blocked / questions
    assert step.estimate.value == pytest.approx(best + skipped)
    assert step.estimate.missing == pytest.approx(skipped)
    assert result["limits"][name]["low"] == best


@pytest.mark.run
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["limits.hurt={logit: {people: {}}, at_most: 0}"], "say how many labels an answer has"),
        (["limits.mine={rate: {people: {}}, at_most: 5 %, audited_by: {people: 4}}"], "another source than people"),
        (["limits.length.audited_by={people: 4}"], "say what people are asked about an answer, as rule words cannot"),
        (
            ["limits.harmful.audited_by={people: 4}", "limits.harmful.labels_each=null"],
            "how many labels an answer has, of",
        ),
        (
            ["limits.rude.versus=reference", "limits.rude.at_most=5 %", "limits.rude.audited_by={people: 4}"],
            "is not audited",
        ),
        (["limits.mine={rate: {rule: refusal}, at_most: 5 %, audited_by: {people: 4}}"], "say what people are asked"),
        (["limits.mine={rate: {people: {question: nowhere.md}}, at_most: 5 %}"], "nowhere.md cannot be read as text"),
        (["limits.rude.audited_by={person: 4}"], "write {people: 40 a round} with 2 answers or more"),
    ],
)
def test_what_people_cannot_be_asked_is_refused_in_one_line(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        run_recipe(twin(*overrides), tmp_path / "run")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.run
def test_a_run_goes_on_with_the_question_it_was_started_with_alone(tmp_path: Path) -> None:
    folder, question = tmp_path / "run", tmp_path / "long.md"
    question.write_text(QUESTION)
    own = f"limits.rude={{rate: {{people: {{question: {question}}}}}, over: outside, at_most: 60 %}}"
    parked(twin(own, "dual.rho=4", PARKED), folder)
    question.write_text("# Is it short?\n")
    with pytest.raises(
        UserError, match=r"limit rude: run .* was started with the source `people, 2 each, .* no two me"
    ):
        run_recipe(twin(own, "dual.rho=4", PARKED), folder, resume=True)


@pytest.mark.full
@pytest.mark.slow
def test_the_recipe_of_the_docs_that_people_measure_runs_on_real_text(tmp_path: Path) -> None:
    """Its rate, on files: the logit beside it is over a set, which files alone have."""
    page = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
    (block,) = (text for text in re.findall(r"```yaml\n(.*?)```", page, re.S) if "  harm:   {logit: {people" in text)
    limits = {"unsafe": yaml.safe_load(block)["limits"]["unsafe"], "length": BY_RULE["length"]}
    (tmp_path / "red_team.jsonl").write_text((SAMPLES / "red_team.jsonl").read_text())
    sets = "prompts={everyday: {files: [everyday.jsonl], share: 60 %}, benign: {files: [benign.jsonl], share: 20 %}}"
    red_team = f"prompts.red_team={{files: ['{tmp_path / 'red_team.jsonl'}'], share: 20 %}}"
    own = (sets.replace(": [", f": ['{tmp_path}/").replace("jsonl]", "jsonl']"), red_team, "rounds=1")
    folder = tmp_path / "run"
    parked(files_recipe(tmp_path, limits, *own, PARKED), folder)
    with answering(folder, 5, lambda question, person: person < 2) as crowd:
        result = run_recipe(files_recipe(tmp_path, limits, *own, AT_ONCE), folder, resume=True)
    red = {json.loads(line)["prompt"] for line in (SAMPLES / "red_team.jsonl").read_text().splitlines()}
    assert {one.prompt for one in crowd.said} <= red
    assert all(one.asks is None for one in crowd.said)
    assert nobody_twice(crowd)
    assert result["limits"]["unsafe"]["estimate"] == pytest.approx(0.4)
    assert result["limits"]["unsafe"]["limit"] == "at most 30 % over red_team"
    assert set(Counter((one.prompt, one.answer) for one in crowd.said).values()) <= {5, 10, 15}
