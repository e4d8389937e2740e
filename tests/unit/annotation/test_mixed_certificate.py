"""Certificates of runs in which a model measures every draw and people a share: the sentence is about people."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, logit

from deploy.annotation.app import create_app
from pddpo_lab.simulated_people import Manner, enlist, simulate
from pddpo_ray.annotation.people.accounts import People, Role
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.backends.in_process import make_backends
from pddpo_ray.certificates import testing as certifying
from pddpo_ray.certificates.document import FILE, certificate_of, sentences, verified, write_certificate
from pddpo_ray.certificates.margins import draws_rows
from pddpo_ray.certificates.testing import certify
from pddpo_ray.config import Config, load
from pddpo_ray.driver.result import read_result
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import ParkedError, UserError
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.journal.transactions import Store
from pddpo_ray.parts.measuring import table_of
from pddpo_ray.records import Measurement
from pddpo_ray.scorers import labellers
from pddpo_ray.theory.certificates.certificate import upper_bound
from pddpo_ray.theory.certificates.levels import Allocation
from pddpo_ray.theory.certificates.measured_draws import with_people
from pddpo_ray.worlds.truth_by_text import truth_of
from tests.support.annotation_api import GENEROUS
from tests.support.annotation_server import serving
from tests.support.people_by_truth import PeopleByTruth
from tests.unit.annotation.test_mixed_run import SETTINGS, people  # noqa: F401 (a fixture)
from tests.unit.loop.small_run import run_of

SHARE = 24 / 64
"""Of the settings: 24 audited answers of 64."""
RATE = "limits.cost={rate: {model: cost}, at_most: 50 %, audited_by: {people: 24, unsure: 8}}"
BIASED = [*SETTINGS, RATE, "rounds=1"]


def exact_rate(config: Config, run_dir: Path) -> float:
    backends = make_backends(config, run_dir)
    assert backends.world is not None
    with open_folder(run_dir) as journal:
        table = backends.world.table(journal.policies[-1])
    return float(backends.world.oracle.prior @ (table * expit(backends.world.cost_logits)).sum(axis=1))


@pytest.fixture(autouse=True)
def _biased(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that adds 3 to every cost."""
    monkeypatch.setattr(labellers, "BIAS", 3.0)


@pytest.mark.run
def test_people_correct_a_model_that_calls_nearly_everything_unsafe(tmp_path: Path, people: PeopleByTruth) -> None:  # noqa: F811
    config, run = load("tabular", BIASED), tmp_path / "run"
    run_recipe(config, run)
    rate, asked_before = exact_rate(config, run), people.asked.total()
    entry = certify(config, run, "last", {"cost": rate + 0.25}, 4000)
    (found,) = entry.findings.values()
    assert entry.state == "certified"
    assert found.lower < rate < found.upper
    with open_folder(run) as journal:
        measured = journal.measurements(-1)
    by_model = {one.answer: one.value for one in measured if one.chance is None and one.value is not None}
    labels = {one.answer: one.value for one in measured if one.chance == SHARE and one.value is not None}
    machine = np.array([by_model[name] for name in entry.draws["cost"]])
    asked = np.array([name in labels for name in entry.draws["cost"]])
    assert machine.mean() > rate + 0.2
    assert {one.source for one in measured} == {"model cost", "people"}
    assert abs(asked.mean() - SHARE) < 4 * math.sqrt(SHARE * (1 - SHARE) / asked.size)
    assert people.asked.total() - asked_before == asked.sum()
    values = with_people(machine, [labels.get(name, 0.0) for name in entry.draws["cost"]], asked, SHARE)
    assert entry.candidate.limits[0].draws(entry.numbers["cost"]) == pytest.approx(values)
    low, high = 1 - 1 / SHARE, 1 / SHARE
    bound = upper_bound(values, (rate + 0.25 - low) / (high - low), Allocation().level(0.05, 1))
    assert found.upper == pytest.approx(min(rate + 0.25, low + (high - low) * bound))

    certificate = write_certificate(run, certificate_of(config, run, entry))
    assert "measured by people, asked about 37.5 % of the draws by a coin" in " ".join(sentences(certificate))
    assert "labels in the journal" in verified(run / FILE)["verified"]
    better = [None if one is None else min(one, 0.0) for one in certificate["numbers"]["cost"]]
    (run / FILE).write_text(json.dumps({**certificate, "numbers": {"cost": better}}))
    with pytest.raises(UserError, match=r"of cost is|labels for cost are others"):
        verified(run / FILE)


@pytest.mark.run
def test_a_run_of_a_model_and_people_tests_its_policies_at_its_end(tmp_path: Path, people: PeopleByTruth) -> None:  # noqa: F811
    own = ["certificate={certify: end, draws: 128, candidates: 1}", "limits.cost.at_most=0.9"]
    run_recipe(load("tabular", [*BIASED, *own]), tmp_path / "run")
    result = read_result(tmp_path / "run")
    assert result["outcome"]["tested"] == 1
    with open_folder(tmp_path / "run") as journal:
        labels = sum(one.chance is not None for one in journal.measurements(-1))
    assert 0 < result["labels_certificate"] == labels < 128


def test_a_logits_draw_is_corrected_on_its_scale_and_a_missing_label_leaves_none() -> None:
    config = load("tabular", SETTINGS)
    by_model = [Measurement("cost", name, float(expit(cost))) for name, cost in (("a", 1.5), ("b", 1.5), ("c", -1.0))]
    said = {"b": (1.0, 0.0, 0.0, 0.0), "c": (1.0, None, 0.0, 0.0)}
    by_people = [
        Measurement("cost", name, value, "" if value is not None else "missing", opinion=1 + number, chance=0.5)
        for name, labels in said.items()
        for number, value in enumerate(labels)
    ]
    numbers = table_of([*by_model, *by_people], config.stated, ["a", "b", "c"], 2.0).numbers[:, 0]
    np.testing.assert_allclose(numbers, [1.5, 1.5 + (logit(0.25) - 1.5) / 0.5, np.nan])
    tested = certifying.tested_limits(config, {}, 1)[0]
    # from [-2, 2] by q = 3/8: -2 + 4 (1 - 8/3) to -2 + 4 * 8/3
    assert tested.ends == pytest.approx((-2 - 20 / 3, -2 + 32 / 3))
    assert tested.draws([tested.ends[0], tested.ends[1], None])[:2] == pytest.approx([0.0, 1.0])


def test_a_dry_run_says_the_least_that_people_are_asked_whatever_the_model_says() -> None:
    """2 % at 95 %: 173 answers without a failure for the first candidate."""
    ((name, said, needed),) = draws_rows(load("tabular", [*BIASED, "limits.cost.at_most=0.02"]))
    assert (name, said) == ("cost", "at most 2 % by people, who see 37.5 % of the draws")
    assert needed.startswith("about 173 people's answers at least, candidate 12 about ")


@pytest.mark.full
@pytest.mark.slow
def test_people_of_the_queue_get_the_draws_that_the_coin_shows_them_and_none_twice(tmp_path: Path) -> None:
    folder, batch = tmp_path / "demo", "certificate={batch: 8}"
    config = load("tabular", [*BIASED, batch])
    with pytest.raises(ParkedError):
        run_recipe(load("tabular", [*BIASED, batch, "people.park_after_s=0"]), folder)
    engine = open_database(folder / "journal.sqlite")
    store = Store(engine, run_of(folder))
    _, token = People(store).create("admin", Role.ADMIN, by="test")
    stop = threading.Event()
    with serving(create_app(engine, store.run, Rules(gold_rate=0.0), GENEROUS)) as url:
        accounts = enlist(url, token, 3, "person")
        truth = truth_of(config)
        crowd = threading.Thread(
            target=simulate,
            args=(url, accounts, [Manner(error=0.0)], truth.scores),
            kwargs={"seed": 3, "idle_s": None, "stop": stop},
        )
        crowd.start()
        try:
            run_recipe(config, folder, resume=True)
            entry = certify(config, folder, "last", {"cost": 0.97}, 32)
            ends = entry.findings["cost"]
            open_limit = (ends.lower + ends.upper) / 2  # the draws so far do not decide it
        finally:
            stop.set()
            crowd.join()
    with pytest.raises(ParkedError, match="pddpo certify RUN"):
        certify(load("tabular", [*BIASED, batch, "people.park_after_s=0"]), folder, "last", {"cost": open_limit}, 64)
    with open_folder(folder) as journal:
        measured = journal.measurements(-1)
    labelled = {one.answer for one in measured if one.chance is not None}
    assert entry.count >= 8
    assert labelled < {one.answer for one in measured if one.chance is None}, "the model alone spoke of what parked"
    assert labelled <= set(entry.draws["cost"])
    engine.dispose()
