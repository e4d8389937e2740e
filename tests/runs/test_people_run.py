"""A whole run with people as feedback: it parks, people answer over HTTP, it goes on and finishes."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from sqlalchemy import func, select

from deploy.annotation.app import create_app
from pddpo_lab.simulated_people import Manner, enlist, simulate
from pddpo_ray.annotation.people.accounts import People, Role
from pddpo_ray.annotation.queue.batches import Rounds
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.annotation.queue.worklog import WorkLog
from pddpo_ray.backends.preflight import take_new_identity
from pddpo_ray.certificates.ledger import read_ledger
from pddpo_ray.certificates.testing import certify
from pddpo_ray.config import load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import ParkedError
from pddpo_ray.journal import read_journal
from pddpo_ray.journal.annotation_schema import answer as answer_table
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.journal.transactions import Store
from pddpo_ray.records import Verdict
from pddpo_ray.report.run_data import read_run
from pddpo_ray.report.sections.people import people
from pddpo_ray.report.text import seconds
from pddpo_ray.worlds.truth_by_text import truth_of
from tests.support.annotation_api import GENEROUS
from tests.support.annotation_server import serving
from tests.unit.loop.small_run import run_of

SETTINGS = [
    "rounds=2",
    "feedback.kind=people",
    "feedback.responses=8",
    "limits.cost.labels_each=3",
    "limits.cost={rate: {people: {}}, learned_from: comparisons}",
    "limits.cost.at_most=0.5",
    "explore.prompts=4",
    "explore.baseline_answers=4",
    "rollout.candidates=4",
    "report.tensorboard=false",
    "report.html=false",
    "certificate={batch: 8}",
]


@pytest.mark.slow
def test_a_run_parks_for_people_and_finishes_with_exactly_their_labels(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with pytest.raises(ParkedError, match="compare: waiting for people, 0 of 4 labels"):
        run_recipe(load("tabular", [*SETTINGS, "people.park_after_s=0"]), folder)
    config = load("tabular", SETTINGS)
    engine = open_database(folder / "journal.sqlite")
    store = Store(engine, run_of(folder))
    _, token = People(store).create("admin", Role.ADMIN, by="test")
    stop, tallies = threading.Event(), []
    with serving(create_app(engine, store.run, Rules(gold_rate=0.0), GENEROUS)) as url:
        accounts = enlist(url, token, 5, "person")
        truth = truth_of(config)
        crowd = threading.Thread(
            target=lambda: tallies.extend(
                simulate(url, accounts, [Manner(error=0.05)], truth.scores, seed=3, idle_s=None, stop=stop)
            )
        )
        crowd.start()
        try:
            result = run_recipe(config, folder, resume=True)
            tested = certify(config, folder, "last", {"cost": 0.97}, 16)
        finally:
            stop.set()
            crowd.join()
    assert result["rounds"] == 2
    assert sum(len(tally.acknowledged) for tally in tallies) == 2 * (8 * 3 + 4) + 3 * tested.count
    assert tested.candidate.limits[0].source == "people"
    # nobody is there any more: it parks, and nothing that was answered is asked again
    with pytest.raises(ParkedError, match="pddpo certify RUN"):
        certify(load("tabular", [*SETTINGS, "people.park_after_s=0"]), folder, "round-1", {"cost": 0.97}, 16)
    with open_folder(folder) as journal:
        assert [one.count for one in read_ledger(journal)] == [tested.count, 0]
        labels = {one.response.id: one.labels for one in journal.safety(-1)}
    assert all(len(one) == 3 for one in labels.values())
    assert list(labels) == list(tested.draws["cost"])
    rounds = Rounds(store, Rules())
    with read_journal(folder / "journal.sqlite", "demo") as journal:
        for number in (1, 2):
            batch = next(one for one in rounds.all() if (one.round, one.purpose) == (number, "safety"))
            snapshot = rounds.snapshot(batch.id)
            assert snapshot is not None
            said: dict[str, list[Verdict]] = {}
            for entry in snapshot.answers:
                said.setdefault(entry.item, []).append(Verdict(entry.given["safety"]))
            kept = {labels.response.id: list(labels.labels) for labels in journal.safety(number)}
            assert kept == said
            assert journal.metrics()[number]["people/safety_labels"] == 24
    worked = sum(WorkLog(store, idle_s=Rules().idle_s).seconds(one.id) for one in rounds.all() if one.round in (1, 2))
    assert worked > 0
    said_by_the_report = people(read_run(folder)).partition("by the server")[2].partition("</tr>")[0]
    assert seconds(worked) in said_by_the_report, "the report's hours are those of the work log"
    engine.dispose()


@pytest.mark.full
@pytest.mark.run
def test_a_copied_run_keeps_the_labels_of_its_people_and_asks_nothing_twice(tmp_path: Path) -> None:
    """More than 200 labels are given while the run is parked; its copy goes on with them as a run of its own."""
    asking = [*SETTINGS, "feedback.responses=70", "people.park_after_s=0"]
    config, first, copy = load("tabular", asking), tmp_path / "first", tmp_path / "copy"
    with pytest.raises(ParkedError):
        run_recipe(config, first)
    engine = open_database(first / "journal.sqlite")
    store = Store(engine, run_of(first))
    _, token = People(store).create("admin", Role.ADMIN, by="test")
    with serving(create_app(engine, store.run, Rules(gold_rate=0.0), GENEROUS)) as url:
        accounts = enlist(url, token, 5, "person")
        tallies = simulate(url, accounts, [Manner(error=0.05)], truth_of(config).scores, seed=3, idle_s=1.0)
    engine.dispose()
    given = sum(len(tally.acknowledged) for tally in tallies)
    assert given >= 200
    shutil.copytree(first, copy)
    child = take_new_identity(config, copy)
    # It parks again, at the questions of round 2: those of round 1 are read back.
    with pytest.raises(ParkedError):
        run_recipe(config, copy, resume=True)
    with open_folder(copy) as journal:
        assert (journal.run_id, journal.about.parent) == (child, store.run)
        assert journal.next_round == 2
        assert sum(len(answer.labels) for answer in journal.safety(1)) == 70 * 3
        rounds = Rounds(Store(journal.engine, child), Rules()).all()
        assert len([one for one in rounds if one.round == 1 and one.purpose == "safety"]) == 1
        with journal.engine.connect() as connection:
            assert connection.execute(select(func.count()).select_from(answer_table)).scalar() == given
