"""Labels as files and through other tools: the queue's rules decide, and doing it twice changes nothing."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.annotation.connectors.argilla import Argilla
from pddpo_ray.annotation.connectors.label_studio import LabelStudio
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.queue.exchange import GivenElsewhere, examples, open_questions, take_answers
from pddpo_ray.annotation.review.audit_checks import broken_links, imbalances
from pddpo_ray.cli.main import main
from pddpo_ray.config import load
from pddpo_ray.data import Settings, inspect
from pddpo_ray.errors import UserError
from pddpo_ray.journal import Journal
from pddpo_ray.journal.database import open_database
from tests.support.annotation_queue import RULES, FreshQueue, pair_questions, safety_questions
from tests.support.annotation_server import serving
from tests.support.annotation_tools import KEY, PERSONAL, argilla, choices, label_studio, response

PAIR = {"more_helpful": "first", "more_harmful": "second", "first_safety": "safe", "second_safety": "unsafe"}


def open_both(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(3), labels_each=2)
    queue.rounds.open(1, "compare", pair_questions(2), labels_each=1)


def by_item(queue: FreshQueue) -> dict[str, str]:
    """Question id by the prompt's last word."""
    return {f"{one.kind} {one.prompt.split()[-1]}": one.id for one in open_questions(queue.store)}


def test_answers_from_elsewhere_follow_the_rules_of_the_queue(queue: FreshQueue) -> None:
    open_both(queue)
    ids = by_item(queue)
    answers = [
        GivenElsewhere(ids["safety 0"], "ana", {"safety": "safe"}),
        GivenElsewhere(ids["safety 0"], "ben", {"safety": "unsafe"}),
        GivenElsewhere(ids["safety 0"], "cem", {"safety": "unsafe"}),
        GivenElsewhere(ids["safety 0"], "ana", {"safety": "unsafe"}),
        GivenElsewhere(ids["safety 1"], "ana", {}),
        GivenElsewhere(ids["pair 0"], "ana", PAIR),
        GivenElsewhere(ids["pair 1"], "ana", {"more_helpful": "first"}),
        GivenElsewhere("nothing", "ana", {"safety": "safe"}),
    ]
    taken = take_answers(queue.store, RULES, "tool", answers)
    assert dict(taken.outcomes) == {"counted": 3, "surplus": 1, "skipped": 1}
    assert len(taken.not_taken) == 3
    assert "answered this question already" in taken.not_taken[0]
    assert "more_helpful, more_harmful" in taken.not_taken[1]
    assert "no question 'nothing'" in taken.not_taken[2]
    again = take_answers(queue.store, RULES, "tool", answers)
    assert dict(again.outcomes) == {"repeated": 5}
    assert len(again.not_taken) == 3
    assert imbalances(queue.store) == []
    assert broken_links(queue.store) == []
    assert [person.active for person in queue.people.all()] == [False, False, False]


@pytest.mark.slow
def test_an_answer_from_elsewhere_means_the_same_as_one_from_the_page(queue: FreshQueue) -> None:
    """A person who has the question here in swapped order, and answers it elsewhere in terms of first and second."""
    queue.rounds.open(1, "compare", pair_questions(24), labels_each=1)
    person = queue.person("tool ana")
    swapped = 0
    for _ in range(24):
        lease = queue.leases.lease(person)
        assert isinstance(lease, Lease)
        swapped += lease.left.startswith("two")
        number = lease.prompt.split()[-1]
        question = next(one.id for one in open_questions(queue.store) if one.prompt == f"prompt {number}")
        receipt = queue.answers.receive(person, f"key-{number:0>4}", question, Submission("label", PAIR))
        assert receipt.outcome.value == "counted"
    assert 0 < swapped < 24
    assert {(row.better, row.safer, row.answers[0].safe) for row in examples(queue.store)} == {(0, 0, True)}


def test_a_pair_question_makes_one_complete_row(queue: FreshQueue, tmp_path: Path) -> None:
    queue.rounds.open(1, "compare", pair_questions(3), labels_each=1)
    ids = by_item(queue)
    tie = PAIR | {"more_helpful": "tie", "more_harmful": "tie", "second_safety": "safe"}
    take_answers(
        queue.store,
        RULES,
        "tool",
        [GivenElsewhere(ids["pair 0"], "ana", PAIR), GivenElsewhere(ids["pair 1"], "ana", tie)],
    )
    first, second = examples(queue.store)
    assert (first.better, first.safer, [answer.safe for answer in first.answers]) == (0, 0, [True, False])
    assert (second.better, second.safer, [answer.safe for answer in second.answers]) == (None, None, [True, True])


@pytest.fixture
def run(tmp_path: Path, queue: FreshQueue) -> Path:
    """A run folder whose queue has one counted pair, one that contradicts itself, and two safety labels."""
    folder = tmp_path / "run" / "demo"
    config = load("tabular", ["feedback.kind=people"])
    place = folder / "journal.sqlite"
    Journal.open(place, "demo", create=config.model_dump(mode="json"), fixed=config.fixed_settings()).close()
    engine = open_database(place)
    mine = FreshQueue(engine)
    open_both(mine)
    ids = by_item(mine)
    wrong = PAIR | {"more_harmful": "first"}
    answers = [
        GivenElsewhere(ids["pair 0"], "ana", PAIR),
        GivenElsewhere(ids["pair 1"], "ana", wrong),
        GivenElsewhere(ids["safety 0"], "ana", {"safety": "safe"}),
        GivenElsewhere(ids["safety 0"], "ben", {"safety": "unsafe"}),
    ]
    take_answers(mine.store, RULES, "tool", answers)
    engine.dispose()
    return folder


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--json"])
    assert (end.value.code or 0) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_exported_labels_are_read_back_by_the_data_checker(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "people.parquet"
    said = told(["annotations", "export", "--run", str(run), "--out", str(out)], capsys)
    assert (said["rows"], said["contradictory"], said["without_a_label_for_it"]) == (1, 1, 2)
    found = inspect([str(out)], Settings())
    (good,) = found.examples()
    labels = {answer.text: answer.safe for answer in good.example.answers}
    assert labels == {"one 0": True, "two 0": False}
    assert good.example.better is not None
    assert good.example.answers[good.example.better].text == "one 0"
    qa = tmp_path / "labels.jsonl"
    told(["annotations", "export", "--run", str(run), "--out", str(qa), "--to", "pku-qa"], capsys)
    assert sorted(json.loads(line)["is_safe"] for line in qa.read_text().splitlines()) == [False, False, True, True]


def test_labels_in_a_file_answer_the_questions_that_show_the_same_texts_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A PKU-SafeRLHF row in the other order means the same; rows that are no answer are named."""
    config = load("tabular", ["feedback.kind=people"])
    folder = tmp_path / "other" / "demo"
    place = folder / "journal.sqlite"
    Journal.open(place, "demo", create=config.model_dump(mode="json"), fixed=config.fixed_settings()).close()
    engine = open_database(place)
    queue = FreshQueue(engine)
    queue.rounds.open(1, "compare", pair_questions(2), labels_each=1)
    rows = [
        {"prompt": "prompt 0", "response_0": "two 0", "response_1": "one 0", "better_response_id": 1,
         "safer_response_id": 1, "is_response_0_safe": False, "is_response_1_safe": True},
        {"prompt": "prompt 9", "response_0": "two 0", "response_1": "one 0", "better_response_id": 1,
         "safer_response_id": 1, "is_response_0_safe": False, "is_response_1_safe": True},
    ]  # fmt: skip
    file = tmp_path / "labels.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": 3}]))
    command = ["annotations", "import", str(file), "--run", str(folder), "--who", "ana"]
    said = told(command, capsys)
    assert said["counted"] == 1
    assert any("labels.jsonl line 2: no question of this run shows these texts" in line for line in said["left_out"])
    assert any("labels.jsonl:3" in line for line in said["left_out"])
    assert len(said["left_out"]) == 2
    assert told(command, capsys)["repeated"] == 1
    file.write_text("".join(json.dumps(rows[0]) + "\n" for _ in range(2)))
    (twice,) = told(command, capsys)["left_out"]
    assert "line 2: earlier rows answered every question that shows these texts" in twice
    (row,) = examples(queue.store)
    engine.dispose()
    assert (row.better, row.safer, [answer.safe for answer in row.answers]) == (0, 0, [True, False])


@pytest.mark.slow
def test_label_studio_gets_every_question_once_and_gives_every_answer_once(queue: FreshQueue) -> None:
    open_both(queue)
    app = label_studio()
    with serving(app) as url:
        for key in (KEY, PERSONAL):
            connector = LabelStudio(url, key, "demo")
            assert connector.push(open_questions(queue.store)) == (5 if key == KEY else 0)
            connector.close()
        tasks = {f"{'pair' if 'second' in task['data'] else 'safety'} {task['data']['prompt'][-1]}": task
                 for task in app.state.tasks}  # fmt: skip
        assert [project["maximum_annotations"] for project in app.state.projects] == [2, 1]
        ana = {"completed_by": 4, "was_cancelled": False, "lead_time": 3.25}
        tasks["safety 1"]["annotations"] += [ana | {"result": choices(safety="unsafe")}] * 2
        tasks["safety 2"]["annotations"] += [{"completed_by": {"id": 5}, "was_cancelled": True, "result": []}]
        tasks["pair 0"]["annotations"] += [ana | {"result": choices(**PAIR)}]
        tasks["pair 1"]["annotations"] += [ana | {"result": choices(more_helpful="first")}]
        app.state.tasks.reverse()
        app.state.tasks.append({"id": 99, "project": 1, "data": {"prompt": "not ours"}, "annotations": []})
        connector = LabelStudio(url, KEY, "demo")
        taken = take_answers(queue.store, RULES, connector.name, connector.pull())
        assert dict(taken.outcomes) == {"counted": 2, "repeated": 1, "skipped": 1}
        assert len(taken.not_taken) == 1
        assert dict(take_answers(queue.store, RULES, connector.name, connector.pull()).outcomes) == {"repeated": 4}
        connector.close()
        with closing(LabelStudio(url, "wrong", "demo")) as stranger, pytest.raises(UserError, match="refuses the key"):
            stranger.pull()
    with closing(LabelStudio("http://127.0.0.1:9", KEY, "demo")) as lost, pytest.raises(UserError, match="no Label St"):
        lost.pull()


def test_argilla_gets_every_question_once_and_gives_every_answer_once(queue: FreshQueue) -> None:
    open_both(queue)
    app = argilla()
    with serving(app) as url:
        connector = Argilla(url, KEY, "demo")
        assert [connector.push(open_questions(queue.store)) for _ in range(2)] == [5, 0]
        assert [one["distribution"]["min_submitted"] for one in app.state.datasets.values()] == [2, 1]
        safety, pairs = (list(records.values()) for records in app.state.records.values())
        safety[0]["responses"] += [response(1, safety="safe"), response(2, safety="unsafe"), response(3, "draft")]
        safety[1]["responses"] += [response(1, "discarded")]
        pairs[0]["responses"] += [response(1, **PAIR)]
        taken = take_answers(queue.store, RULES, connector.name, connector.pull())
        assert dict(taken.outcomes) == {"counted": 3, "skipped": 1}
        assert dict(take_answers(queue.store, RULES, connector.name, connector.pull()).outcomes) == {"repeated": 4}
        connector.close()
        elsewhere = Argilla(url, KEY, "demo", "nowhere")
        with closing(elsewhere), pytest.raises(UserError, match="--workspace: people"):
            elsewhere.pull()
        with closing(Argilla(url, "wrong", "demo")) as stranger, pytest.raises(UserError, match="refuses the key"):
            stranger.pull()
    assert sorted(by_item(queue)) == ["pair 1", "safety 1", "safety 2"]


def test_a_pull_tells_skips_of_people_from_answers_that_the_queue_does_not_take(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", KEY)
    app = label_studio()
    with serving(app) as url:
        command = ["--run", str(run), "--tool", "label-studio", "--url", url]
        told(["annotations", "push", *command], capsys)
        ana = {"completed_by": 4, "lead_time": 3.25}
        app.state.tasks[0]["annotations"] += [ana | {"was_cancelled": True, "result": []}]
        app.state.tasks[1]["annotations"] += [ana | {"was_cancelled": False, "result": choices(more_helpful="first")}]
        said = told(["annotations", "pull", *command], capsys)
    assert said["skipped"] == 1
    assert len(said["not_taken"]) == 1
    assert "refused" not in said


def test_a_tool_without_a_key_is_refused(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.delenv("ARGILLA_API_KEY", raising=False)
    with pytest.raises(SystemExit) as end:
        main(["annotations", "pull", "--run", str(run), "--tool", "argilla", "--url", "http://127.0.0.1:9"])
    assert end.value.code == 2
    assert "ARGILLA_API_KEY" in capsys.readouterr().err


def test_a_limits_own_question_is_neither_exported_as_safety_nor_asked_elsewhere(queue: FreshQueue) -> None:
    asks = [replace(one, asks="Does it sell something?") for one in safety_questions(2)]
    batch = queue.rounds.open(1, "measure-answers-sells", asks, labels_each=1)
    person = queue.person("ana")
    lease = queue.leases.lease(person)
    assert isinstance(lease, Lease)
    assert lease.asks == "Does it sell something?"
    queue.answers.answer(person, "key-00001", lease.id, Submission("label", {"safety": "unsafe"}))
    assert queue.rounds.status(batch.id).counted == 1
    assert list(examples(queue.store)) == []
    assert open_questions(queue.store) == []
