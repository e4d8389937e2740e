"""One actor holds the limits of many reward workers: shared, killed and begun anew, and clear about what is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.limit_controller import LimitControllerActor, SharedLimits
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.integrations.answer_scores import AnswerScores, Asked, asked_for
from tests.support.ray_session import living_actors

pytestmark = pytest.mark.ray

LIMITS = "limits: {length: {mean: {rule: words}, at_most: 3, bounds: [0, 10]}}\n"
STEP = [("a", "one two three four five six seven eight", 3.0), ("a", "one two", 1.0)]
STEP += [("b", "one two three four five six", 7.0), ("b", "one two three four", 1.0)]


@pytest.fixture
def limits(tmp_path: Path) -> Path:
    file = tmp_path / "limits.yaml"
    file.write_text(LIMITS)
    return file


def one(index: int) -> Asked:
    prompt, answer, reward = STEP[index % 4]
    return asked_for([prompt], [answer], [reward])


def here(folder: Path, limits: Path) -> AnswerScores:
    return AnswerScores(limits, journal=folder / "here.jsonl", answers_a_step=4)


def process_of(journal: Path) -> int:
    name = f"pddpo/limits/{journal.resolve()}"
    found = [actor for actor in living_actors() if actor.name == name]
    return int(found[0].pid)


def steps(journal: Path) -> list[int]:
    return [line["step"] for line in map(json.loads, journal.read_text().splitlines()) if "observed" in line]


FILE = """
from actors.limit_controller import SharedLimits
from pddpo_ray.integrations.verl import limited

def helpful(data_source, solution_str, ground_truth, extra_info):
    return float(ground_truth)

compute_score = limited(helpful, SharedLimits({limits!r}, journal={journal!r}, answers_a_step=8))
"""


class Worker:
    """A reward worker of a trainer: it loads the user's file and calls its function."""

    def __init__(self, file: str) -> None:
        spec = importlib.util.spec_from_file_location("reward", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._compute_score = module.compute_score

    def score(self, index: int) -> tuple[int, dict[str, Any]]:
        prompt, answer, reward = STEP[index % 4]
        return os.getpid(), self._compute_score("pans", answer, reward, {"question": prompt})


def test_two_processes_share_one_actor_which_moves_once_a_step(ray_running: None, limits: Path, tmp_path: Path) -> None:
    journal, file = tmp_path / "limits.jsonl", tmp_path / "reward.py"
    file.write_text(FILE.format(limits=str(limits), journal=str(journal)))
    worker: Any = ray.remote(Worker)
    workers = [worker.options(num_cpus=1).remote(str(file)) for _ in range(2)]
    seen = []
    for _ in range(3):
        found = ray.get([workers[index // 4].score.remote(index) for index in range(8)], timeout=120)
        assert len({process for process, _ in found}) == 2
        seen.append({figures["multiplier/length"] for _, figures in found})
    assert [len(weights) for weights in seen] == [1, 1, 1]
    assert steps(journal) == [0, 1, 2]
    first = process_of(journal)
    for handle in workers:
        ray.kill(handle)
    shared = SharedLimits(limits, journal=journal, answers_a_step=8)
    assert process_of(journal) == first, "it does not end with the worker that started it"
    assert shared.multipliers()["length"] > max(seen[2]) > max(seen[1]) > max(seen[0]) == 0.0
    shared.close()


def test_a_killed_actor_comes_back_with_the_same_multipliers_in_the_middle_of_a_step(
    ray_running: None, limits: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "limits.jsonl"
    shared, unbroken = SharedLimits(limits, journal=journal, answers_a_step=4), here(tmp_path, limits)
    requests = [one(index) for index in range(11)]
    found = [shared.score(asked) for asked in requests[:6]]
    before, first = shared.multipliers(), process_of(journal)
    assert before["length"] > 0
    os.kill(first, signal.SIGKILL)
    assert shared.multipliers() == before
    assert process_of(journal) != first
    assert shared.score(requests[5]) == found[5]  # asked again, as a worker does whose reply was lost
    found += [shared.score(asked) for asked in requests[6:]]
    assert found == [unbroken.score(asked) for asked in requests]
    assert shared.multipliers() == unbroken.multipliers
    shared.close()


@pytest.mark.full
def test_a_new_actor_of_a_trainer_that_was_started_again_begins_the_step_again(
    ray_running: None, limits: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "limits.jsonl"
    shared = SharedLimits(limits, journal=journal, answers_a_step=4)
    for index in range(6):
        shared.score(one(index))
    before = shared.multipliers()
    shared.close()
    again = SharedLimits(limits, journal=journal, answers_a_step=4)
    told = [again.score(one(index)).multipliers for index in range(4)]
    assert told == [before] * 4
    assert (steps(journal), again.multipliers() == before) == ([0, 1], False)
    again.close()


@pytest.mark.full
def test_requests_at_a_time_are_answered_each_with_its_own(ray_running: None, limits: Path, tmp_path: Path) -> None:
    shared = SharedLimits(limits, journal=tmp_path / "limits.jsonl", answers_a_step=1000)
    begun = [(index, shared._answerer.begin(LimitControllerActor.score, one(index))) for index in range(100)]
    for index, reference in begun:
        scored = ray.get(reference, timeout=120)
        assert (scored.scores, scored.values) == ([STEP[index % 4][2]], {"length": [len(STEP[index % 4][1].split())]})
    shared.close()


def test_what_is_wrong_is_one_line_and_can_be_mended(ray_running: None, limits: Path, tmp_path: Path) -> None:
    journal = tmp_path / "limits.jsonl"
    with pytest.raises(UserError, match=r"none\.yaml does not exist"):
        SharedLimits(tmp_path / "none.yaml", journal=journal, answers_a_step=4)
    with pytest.raises(UserError, match="answers_a_step is 0"):
        SharedLimits(limits, journal=journal, answers_a_step=0)
    mended = SharedLimits(limits, journal=journal, answers_a_step=4)
    with pytest.raises(UserError, match=r"limits\.jsonl were begun with another file"):
        SharedLimits(limits, journal=journal, answers_a_step=8)
    assert mended.score(one(0)).scores == [3.0]
    mended.close()


@pytest.mark.full
def test_a_wait_ends_and_says_whom_it_waited_for(ray_running: None, tmp_path: Path) -> None:
    (tmp_path / "slow_measure.py").write_text("import time\n\ndef slow(*told):\n    time.sleep(9)\n    return 1.0\n")
    slow = tmp_path / "limits.yaml"
    slow.write_text("limits: {slow: {mean: {function: 'slow_measure:slow'}, at_most: 3, bounds: [0, 10]}}\n")
    shared = SharedLimits(slow, journal=tmp_path / "limits.jsonl", answers_a_step=4)
    shared._answerer.deadline_s = 1.0
    with pytest.raises(RunError, match=r"limit controller pddpo/limits/.*limits\.jsonl did not finish scores of 1"):
        shared.score(one(0))
    shared.close()


def test_without_ray_the_message_says_where_it_belongs(monkeypatch: pytest.MonkeyPatch, limits: Path) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UserError, match="Ray does not run in this process"):
        SharedLimits(limits, journal=limits.with_name("limits.jsonl"), answers_a_step=4)
