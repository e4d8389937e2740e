"""Who is put to the test first: every round's estimates are read from the answers of all rounds."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pddpo_ray.backends.backends import Backends
from pddpo_ray.certificates import candidate_order as order_of_tests
from pddpo_ray.certificates import release
from pddpo_ray.certificates.candidate_order import PooledAnswers
from pddpo_ray.certificates.outcome import ORDER
from pddpo_ray.certificates.testing import certify
from pddpo_ray.cli.output import spoken
from pddpo_ray.config import Config
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.journal import Journal, JournalReader
from pddpo_ray.journal.identity import open_folder
from pddpo_ray.training import progress
from tests.unit.loop.small_run import ledger, small

pytestmark = pytest.mark.run

QUIET = ("report.html=false", "report.tensorboard=false", "offline.compare_rounds=0")
TESTED = ("certificate={certify: end, draws: 64, candidates: 1}", "rounds=8", "feedback.responses=64")
STATED = "limits={cost: null, unsafe: {rate: {world: cost}, at_most: 50 %, labels_each: 1}}"


def found(journal: JournalReader, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By round: pooled estimates, the rounds' own estimates, and how helpful their policies are estimated to be."""
    payload = journal.phases(like=ORDER)[-1].payload
    numbers = range(1, 9)
    own = {step.round: step.estimate.value for step in journal.dual_steps()}
    pooled = [payload["estimates"][str(number)][name] for number in numbers]
    return np.array(pooled), np.array([own[n] for n in numbers]), np.array(list(payload["helpfulness"].values()))


def test_estimates_from_all_answers_are_nearer_to_the_truth_than_the_rounds_own(tmp_path: Path) -> None:
    run_recipe(small(STATED, *QUIET, *TESTED, "dual.rule={kind: newton}"), tmp_path / "run")
    with open_folder(tmp_path / "run") as journal:
        pooled, own, helpful = found(journal, "unsafe")
        metrics = journal.metrics()
    exact = 0.5 + np.array([metrics[number]["exact/g_policy"] for number in range(1, 9)])
    assert np.mean((pooled - exact) ** 2) < 0.6 * np.mean((own - exact) ** 2)
    assert len(helpful) == 8


def test_a_part_of_the_answers_is_of_all_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of every round's answers has their prompts in their shares, in whatever order they stand."""
    run_recipe(small(STATED, *QUIET, *TESTED, "rounds=2", "dual.rule={kind: newton}"), tmp_path / "run")
    monkeypatch.setattr(order_of_tests, "MOST_ASKED", 4 * 16)
    with open_folder(tmp_path / "run") as journal:
        drawn = {number: journal.samples(number, "cost") for number in (1, 2)}
        pooled = PooledAnswers(journal, lambda policy, answers: np.zeros(len(answers)), seed=0)
    assert len(pooled.answers) == 32
    for place, answers in enumerate(drawn.values()):
        part = Counter(answer.prompt.id for answer in pooled.answers[16 * place : 16 * (place + 1)])
        assert set(part) <= {answer.prompt.id for answer in answers}
        for prompt, count in Counter(answer.prompt.id for answer in answers).items():
            assert part[prompt] / 16 == pytest.approx(count / 64, abs=0.3)


@pytest.mark.parametrize(("newest", "rounds"), [(None, [1, 2, 3]), (768, [1, 2, 3]), (767, [2, 3]), (0, [2, 3])])
def test_the_newest_rounds_are_pooled_where_log_probabilities_cost_more_than_the_test(
    tmp_path: Path, newest: int | None, rounds: list[int]
) -> None:
    """Of 64 answers a round: three rounds' under three policies and the reward policy are 768."""
    run_recipe(small(STATED, *QUIET, *TESTED, "rounds=3", "dual.rule={kind: newton}"), tmp_path / "run")
    with open_folder(tmp_path / "run") as journal:
        pooled = PooledAnswers(journal, lambda policy, answers: np.zeros(len(answers)), 0, newest)
    assert (pooled.rounds, len(pooled.answers)) == (rounds, 64 * len(rounds))


def test_labels_of_a_limit_without_a_name_are_pooled_too(tmp_path: Path) -> None:
    rate = (
        "limits.cost={rate: {world: cost}, learned_from: comparisons}",
        "limits.cost.labels_each=2",
        "limits.cost.at_most=0.47",
    )
    run_recipe(small(*rate, *QUIET, *TESTED), tmp_path / "run")
    with open_folder(tmp_path / "run") as journal:
        pooled, own, _ = found(journal, "cost")
    assert pooled == pytest.approx(own, abs=0.15)
    assert np.std(pooled) < np.std(own)


def test_a_test_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real model's takes half an hour."""
    monkeypatch.setattr(progress, "TELL_EVERY_S", 0.0)
    said: list[str] = []
    with spoken(said.append):
        run_recipe(small(STATED, *QUIET, *TESTED, "rounds=2", "dual.rule={kind: newton}"), tmp_path / "run")
    assert "who is tested: log-probabilities of answers under the policy of round 2 of 2" in said
    assert any(re.fullmatch(r"policy-[12]: \d+ of at most [\d,]+ draws, undecided: unsafe", line) for line in said)
    assert any(re.fullmatch(r"policy-[12] is (certified|undecided|broken) after \d+ draws", line) for line in said)


def test_a_policy_that_misses_a_limit_on_average_gives_way_to_the_next_and_the_last_one_has_all_its_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both policies have about 46 % unsafe answers."""

    def first_the_first(config: Config, journal: Journal, backends: Backends) -> Any:
        return {**order_of_tests.order_of_tests(config, journal, backends), "order": [1, 2]}

    monkeypatch.setattr(release, "order_of_tests", first_the_first)
    limit = "limits={cost: null, unsafe: {rate: {world: cost}, at_most: 46 %, labels_each: 1}}"
    stated = "certificate={certify: end, draws: 2048, candidates: 2, batch: 256}"
    config = small(limit, *QUIET, stated, "feedback.responses=64", "dual.rule={kind: newton}")
    run_recipe(config, tmp_path / "run")
    first, second = ledger(tmp_path / "run")
    assert (first.state, second.state, second.count) == ("undecided", "undecided", 2048)
    assert 512 <= first.count < 2048
    assert np.mean(np.array(first.numbers["unsafe"], float)) > 0.46
    assert certify(config, tmp_path / "run", "round-1", {}, 2048).count == 2048
