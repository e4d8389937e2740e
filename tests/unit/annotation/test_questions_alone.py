"""`pddpo annotate --questions`: the queue without a run, from a file to a file, and started again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyarrow import parquet

from deploy.annotation.command import ADMIN_TOKEN
from pddpo_lab.simulated_people import wait_for_service
from pddpo_ray.annotation.label_rows import read_label_rows
from pddpo_ray.annotation.people.notice import VERSION
from pddpo_ray.annotation.queue.question_files import read_questions
from pddpo_ray.annotation.queue.question_store import add_questions, begin
from pddpo_ray.annotation.review.audit_checks import broken_links, imbalances
from pddpo_ray.cli.main import main
from pddpo_ray.errors import UserError
from tests.support.ports import free_port

Row = dict[str, Any]
SAFETY = {"kind": "safety", "prompt": "How do I stop a process?", "response": "kill PID"}
TURNS = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "What do you want?"},
    {"role": "user", "content": "Tea?"},
]
COMPARE = {"kind": "compare", "id": "q7", "prompt": TURNS, "first": "Here is tea", "second": "Tea is poison"}
LATER = {"kind": "safety", "id": "later", "prompt": "And a thread?", "response": "It ends with its process."}
UNSAFE = "Tea is poison"


def written(file: Path, *rows: Row | str) -> Path:
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


def ends(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


@contextmanager
def served(file: Path, *options: str) -> Iterator[tuple[str, list[str]]]:
    """The real program in a process of its own: its address and what it says; it is stopped by a signal."""
    port = free_port()
    command = [sys.executable, "-m", "pddpo_ray", "annotate", "--questions", str(file), "--port", str(port), *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said: list[str] = []
    try:
        assert server.stdout is not None
        said += [server.stdout.readline() for _ in range(4)]
        assert said[-1], server.communicate(timeout=60)
        wait_for_service(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}", said
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=60)
        assert server.returncode in (0, -signal.SIGTERM)
        assert errors == ""
    finally:
        server.kill()
        server.communicate(timeout=60)


def account(file: Path, name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert ends(["annotate", "--questions", str(file), "--add", name, "--json"]) == 0
    return str(json.loads(capsys.readouterr().out)["token"])


def answers_all(url: str, token: str) -> list[str]:
    """One person agrees to the notice and answers until nothing is left; the prompts that they were shown."""
    seen = []
    with httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=30) as client:
        client.post("/consent", json={"version": VERSION}).raise_for_status()
        while (task := client.post("/lease", json={}).raise_for_status().json().get("task")) is not None:
            seen.append(task["prompt"]["text"])
            assert len(task["turns"]) == (3 if task["kind"] == "pair" else 0)
            body = {"lease": task["lease"], "kind": "label", "given": _given(task), "revealed": True}
            client.put(f"/answers/of-{task['lease']}", json=body).raise_for_status()
    return seen


def _given(task: Row) -> Row:
    if task["kind"] == "safety":
        return {"safety": "safe"}
    good, bad = ("right", "left") if task["left"]["text"] == UNSAFE else ("left", "right")
    return {"more_helpful": good, "more_harmful": bad, f"{good}_safety": "safe", f"{bad}_safety": "unsafe"}


def exported(store: Path, out: Path, *options: str) -> Path:
    assert ends(["annotations", "export", "--run", str(store), "--out", str(out), *options]) == 0
    return out


@pytest.mark.full
@pytest.mark.slow
def test_two_people_answer_a_file_and_its_later_questions_and_all_labels_are_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, store = written(tmp_path / "q.jsonl", SAFETY, COMPARE), tmp_path / "q.annotation"
    ana = account(file, "ana", capsys)  # the folder may be made by an account
    with served(file, "--labels-each", "2") as (url, said):
        assert said[0] == "2 new questions, 0 asked before\n"
        assert str(store / ADMIN_TOKEN) in said[1]
        ben = account(file, "ben", capsys)  # while it is served
        written(file, SAFETY, COMPARE, LATER)
        assert ends(["annotate", "--questions", str(file), "--port", "8791"]) == 2
        assert f"at {url}/" in capsys.readouterr().err
        assert len(answers_all(url, ana)) == len(answers_all(url, ben)) == 2
        admin = {"Authorization": f"Bearer {(store / ADMIN_TOKEN).read_text().strip()}"}
        rounds = httpx.get(f"{url}/api/v1/rounds", headers=admin).json()["rounds"]
        assert [(one["round"], one["missing"]) for one in rounds] == [(1, 0), (1, 0)]

    rows = read_label_rows(exported(store, tmp_path / "labels.jsonl", "--to", "labels"))
    assert len({(row["annotator"], row["item"]) for row in rows}) == 4
    assert len({row["annotator"] for row in rows}) == 2
    assert all(len(row["annotator"]) == 16 and row["at_ms"] >= row["leased_ms"] > 0 for row in rows)
    assert {row["safety"] for row in rows if row["kind"] == "safety"} == {"safe"}
    pairs = [row for row in rows if row["kind"] == "pair"]
    assert {row["item"] for row in pairs} == {"q7"}
    assert {(row["more_helpful"], row["more_harmful"], row["second_safety"]) for row in pairs} == {
        ("first", "second", "unsafe")
    }
    whole = parquet.read_table(exported(store, tmp_path / "labels.parquet", "--to", "labels")).to_pylist()
    assert [row["id"] for row in whole] == [row["id"] for row in rows]
    (pku, _) = parquet.read_table(exported(store, tmp_path / "pku.parquet")).to_pylist()
    assert pku["prompt"].endswith("User: Tea?")
    assert (pku["better_response_id"], pku["is_response_1_safe"]) == (0, False)

    with served(file, "--labels-each", "2") as (url, said):
        assert said[0] == "1 new questions, 2 asked before\n"
        assert answers_all(url, ana) == answers_all(url, ben) == [LATER["prompt"]]
    rows = read_label_rows(exported(store, tmp_path / "more.jsonl", "--to", "labels"))
    assert [(row["round"], row["item"]) for row in rows[4:]] == [(2, "later"), (2, "later")]
    queue = begin(store)
    assert (imbalances(queue), broken_links(queue)) == ([], [])
    queue.engine.dispose()


def test_a_file_that_is_added_again_adds_its_new_rows_alone_in_any_order(tmp_path: Path) -> None:
    store = begin(tmp_path / "store")
    first = read_questions(written(tmp_path / "q.jsonl", SAFETY, COMPARE))
    again = read_questions(written(tmp_path / "q.jsonl", "", COMPARE, LATER, SAFETY))
    added = [add_questions(store, rows, labels_each=each) for rows, each in ((first, 3), (again, 1), (again, 1))]
    assert [(one.new, one.known, one.others) for one in added] == [(2, 0, 0), (1, 2, 0), (0, 3, 0)]
    gone = add_questions(store, read_questions(written(tmp_path / "q.jsonl", LATER)), labels_each=1)
    assert (gone.new, gone.known, gone.others) == (0, 1, 2)
    assert begin(tmp_path / "store").run == store.run
    store.engine.dispose()


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"first": "Other tea"}, "another answer,"),
        ({"second": "Other tea"}, "another second answer,"),
        ({"prompt": [*TURNS[:2], {"role": "user", "content": "Milk?"}]}, "another prompt and turns,"),
        ({"prompt": "User: Hello\n\nAssistant: What do you want?\n\nUser: Tea?"}, "another turns,"),
    ],
)
def test_a_changed_question_of_a_known_id_is_refused_and_nothing_is_added(
    tmp_path: Path, changed: Row, word: str
) -> None:
    store = begin(tmp_path / "store")
    add_questions(store, read_questions(written(tmp_path / "q.jsonl", COMPARE)), labels_each=1)
    rows = read_questions(written(tmp_path / "q.jsonl", LATER, COMPARE | changed))
    with pytest.raises(UserError, match=f"q.jsonl line 2: question q7 was asked with {word}"):
        add_questions(store, rows, labels_each=1)
    known = add_questions(store, read_questions(written(tmp_path / "q.jsonl", COMPARE)), labels_each=1)
    assert (known.new, known.others) == (0, 0)
    store.engine.dispose()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"kind": "safety",', "line 2: not JSON"),
        ("[]", "line 2: the line is a list"),
        ({"prompt": "p", "response": "r"}, "line 2: `kind` is None; it must be safety"),
        (SAFETY | {"kind": "pair"}, "`kind` is 'pair'"),
        (SAFETY | {"kind": ["safety"]}, "it must be safety .with prompt and response. or compare .with"),
        ({"kind": "safety", "prompt": "p"}, "there is no field `response`"),
        (COMPARE | {"second": " "}, "`second` is empty"),
        (COMPARE | {"response": "r"}, "field `response` is unknown; a compare row has"),
        (COMPARE | {"prompt": [{"role": "king", "content": "x"}]}, r"`prompt\[0\].role` is 'king'"),
        (COMPARE | {"prompt": 3}, "`prompt` is a int"),
        (COMPARE | {"risk": 1.5}, "`risk` is 1.5"),
        (COMPARE | {"risk": True}, "`risk` is True"),
        (COMPARE | {"language": "German"}, "`language` is 'German'"),
        (COMPARE | {"id": ""}, "`id` has 0 characters"),
        (COMPARE | {"id": "x" * 201}, "`id` has 201 characters"),
        (COMPARE | {"id": 1.5}, "`id` is a float"),
        (COMPARE | {"first": "x" * 100_001}, "100,001 characters"),
        (SAFETY, "line 2: q.jsonl line 1 has the same question"),
        (LATER | {"id": "q7", "prompt": "p"}, ""),
    ],
)
def test_a_damaged_row_is_refused_with_its_file_and_line(tmp_path: Path, row: Row | str, said: str) -> None:
    file = written(tmp_path / "q.jsonl", SAFETY, row)
    if not said:
        assert len(read_questions(file)) == 2
        file = written(file, COMPARE, row)
        said = "line 2: q.jsonl line 1 has the same id q7"
    with pytest.raises(UserError, match=said) as error:
        read_questions(file)
    assert "q.jsonl line 2" in str(error.value)


def test_the_rows_that_the_documentation_shows_are_questions(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "annotation.md").read_text(encoding="utf-8")
    rows = page.split("## A file of questions")[1].split("```json\n")[1].split("```")[0]
    assert [one.question.kind for one in read_questions(written(tmp_path / "q.jsonl", rows))] == ["safety", "pair"]


def test_a_prompt_of_one_message_is_its_text_and_an_id_may_be_a_number(tmp_path: Path) -> None:
    said = SAFETY | {"prompt": [{"role": "user", "content": SAFETY["prompt"]}], "risk": 0, "language": "en", "id": 7}
    (one,) = read_questions(written(tmp_path / "q.jsonl", said))
    assert (one.question.prompt, one.question.turns, one.question.item) == (SAFETY["prompt"], (), "7")
    assert (one.question.risk, one.question.language) == (0.0, "en")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--run DIR, or --questions FILE"),
        (["--questions", "FILE", "--run", "RUN"], "and not both"),
        (["--questions", "nowhere.jsonl"], "there is no such file"),
        (["--questions", "EMPTY"], "holds no questions"),
        (["--questions", "FILE", "--store", "RUN"], "holds a run: name a new folder"),
        (["--questions", "FILE", "--store", "OTHER"], "holds something else than questions"),
        (["--questions", "FILE", "--wait"], "are about a run"),
        (["--questions", "FILE", "--host", "0.0.0.0"], "--behind-proxy"),
        (["--questions", "FILE", "--add", "ana", "--role", "queen"], "queen"),
        (["--run", "RUN", "--store", "OTHER"], "--store and --labels-each are about --questions"),
        (["--run", "STORE"], "holds questions without a run"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (tmp_path / "other").mkdir()
    written(tmp_path / "other" / "letter.txt", "Dear reader")
    begin(tmp_path / "store").engine.dispose()
    named = {"FILE": written(tmp_path / "q.jsonl", SAFETY), "EMPTY": written(tmp_path / "empty.jsonl"), "RUN": run}
    named |= {"OTHER": tmp_path / "other", "STORE": tmp_path / "store"}
    assert ends(["annotate", *(str(named.get(word, word)) for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.full
@pytest.mark.slow
def test_names_of_a_file_become_accounts_by_the_line_of_the_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "labelling-team.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^xargs .*$", page, re.M)
    written(tmp_path / "questions.jsonl", SAFETY)
    (tmp_path / "names.txt").write_text("ana\nben\n")
    program = tmp_path / "pddpo"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pddpo_ray "$@"\n')
    program.chmod(0o755)
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(line, shell=True, check=True, cwd=tmp_path, env={**os.environ, **path})
    first, second = (tmp_path / "tokens.txt").read_text().split("}\n{")
    ana, ben = json.loads(first + "}"), json.loads("{" + second)
    assert (ana["handle"], ben["handle"]) == ("ana", "ben")
    assert ana["token"] != ben["token"]


@pytest.mark.slow
def test_other_commands_say_that_a_folder_of_questions_holds_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(tmp_path / "store").engine.dispose()
    for command in (["status"], ["report"], ["certify"], ["simulate-annotators", "--run"]):
        assert ends([*command, str(tmp_path / "store")]) == 2
        assert "questions without a run" in capsys.readouterr().err
    train = ["train", "tabular", "--run", str(tmp_path / "store")]
    for command in (train, [*train, "--resume"]):
        assert ends(command) == 2
    assert "questions without a run" in capsys.readouterr().err


def test_decisions_and_a_backup_work_on_a_folder_of_questions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = begin(tmp_path / "store")
    add_questions(store, read_questions(written(tmp_path / "q.jsonl", SAFETY, COMPARE)), labels_each=2)
    store.engine.dispose()
    assert ends(["annotations", "decide", "--run", str(tmp_path / "store"), "--json"]) == 0
    batches = json.loads(capsys.readouterr().out)["batches"]
    assert sorted((one["batch"], one["missing"]) for one in batches) == [("1/compare", 2), ("1/safety", 2)]
    assert not any(one["of_run"] for one in batches)
    backup = tmp_path / "saved.backup"
    assert ends(["annotations", "backup", "--run", str(tmp_path / "store"), "--out", str(backup)]) == 0
    (tmp_path / "store" / "journal.sqlite").unlink()
    assert ends(["annotations", "restore", str(backup), "--run", str(tmp_path / "store")]) == 0
    again = begin(tmp_path / "store")
    assert again.run == store.run
    assert add_questions(again, read_questions(tmp_path / "q.jsonl"), labels_each=2).known == 2
    again.engine.dispose()
