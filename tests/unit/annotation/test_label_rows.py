"""Everything that people said, written and read back without loss."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from pyarrow import parquet as pq

from pddpo_ray.annotation.label_rows import label_rows, read_label_rows, take_label_rows
from pddpo_ray.annotation.people.accounts import Campaign, Role
from pddpo_ray.annotation.queue.answers import Submission
from pddpo_ray.annotation.queue.assignment import Lease
from pddpo_ray.annotation.review.audit_checks import imbalances
from pddpo_ray.cli.main import main
from pddpo_ray.cli.runs.recipe_of_run import find_run
from pddpo_ray.data.files.sinks import Sink
from pddpo_ray.errors import UserError
from pddpo_ray.journal.database import open_database
from tests.support.annotation_api import API, FreshService, is_problem
from tests.support.annotation_queue import FreshQueue, pair_questions, safety_questions


def asked(queue: FreshQueue) -> None:
    queue.rounds.open(1, "safety", safety_questions(4), labels_each=2)
    queue.rounds.open(1, "compare", pair_questions(3), labels_each=1, labels_of={"p0": 2})


def said(queue: FreshQueue) -> None:
    """Labels of three people, a skip with a note, an answer taken back and given again, one voided, one surplus."""
    asked(queue)
    Campaign(queue.store).set_guidelines("## Ours", by="admin")
    pair = {"more_helpful": "left", "more_harmful": "tie", "left_safety": "safe", "right_safety": "unsafe"}
    number = 0
    for handle in ("ana", "ben", "carla"):
        person = queue.person(handle)
        while isinstance(lease := queue.leases.lease(person), Lease):
            queue.wait(7)
            number += 1
            label = Submission("label", pair if lease.kind == "pair" else {"safety": "unsafe"}, ms_spent=5000)
            skipped = Submission("flag", reason="broken", note="só um teste ☂")
            queue.answers.answer(person, f"key-{number:04d}", lease.id, skipped if number == 3 else label)
            if number == 5:
                queue.answers.undo(person, lease.id)
    queue.answers.void("key-0001", by="admin", reason="a slip")


@pytest.mark.parametrize("name", ["labels.jsonl", "labels.parquet"])
def test_what_is_written_and_taken_in_elsewhere_is_the_same_rows(
    queue: FreshQueue, empty_journal: Path, tmp_path: Path, name: str
) -> None:
    shutil.copy(empty_journal, tmp_path / "other.sqlite")
    other = FreshQueue(open_database(tmp_path / "other.sqlite"))
    said(queue)
    asked(other)
    rows = list(label_rows(queue.store))
    assert {row["reply"] for row in rows} == {"label", "flag"}
    assert {row["withdrawn_kind"] for row in rows} == {None, "undo", "void"}
    assert {row["guideline_text"] for row in rows} == {"## Ours"}
    assert {row["policy_version"] for row in rows} == {2}
    assert len({row["annotator"] for row in rows}) == 3
    assert "ana" not in json.dumps(rows)
    with Sink(tmp_path / name, "labels") as sink:
        for row in rows:
            sink.write(row)
    read = read_label_rows(tmp_path / name)
    assert read == rows
    taken = take_label_rows(other.store, other.rules, read)
    assert taken.not_taken == []
    assert list(label_rows(other.store)) == rows
    assert imbalances(other.store) == []
    counts = [(one.purpose, one.counted, one.refusals) for one in queue.rounds.all()]
    assert [(one.purpose, one.counted, one.refusals) for one in other.rounds.all()] == counts
    again = take_label_rows(other.store, other.rules, read)
    assert dict(again.outcomes) == {"repeated": len(rows)}
    other.engine.dispose()


def test_rows_without_their_question_or_place_are_listed(
    queue: FreshQueue, empty_journal: Path, tmp_path: Path
) -> None:
    said(queue)
    rows = list(label_rows(queue.store))
    shutil.copy(empty_journal, tmp_path / "other.sqlite")
    other = FreshQueue(open_database(tmp_path / "other.sqlite"))
    assert len(take_label_rows(other.store, other.rules, rows).not_taken) == len(rows)
    asked(other)
    counted = next(row for row in rows if row["seat"] is not None)
    first = take_label_rows(other.store, other.rules, [counted])
    assert dict(first.outcomes) == {"counted": 1}
    second = take_label_rows(other.store, other.rules, [counted | {"id": "another-key"}])
    assert second.not_taken == ["row 1: another label has its place"]
    other.engine.dispose()


@pytest.mark.slow
def test_the_command_line_writes_and_takes_labels_and_refuses_other_files(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = open_database(run / "journal.sqlite")
    queue = FreshQueue(engine)
    queue.store.run = _id_of(run)
    said(queue)
    engine.dispose()
    out = tmp_path / "labels.parquet"
    main_ok(["annotations", "export", "--run", str(run), "--to", "labels", "--out", str(out)])
    assert "rows  14" in capsys.readouterr().out
    main_ok(["annotations", "import", str(out), "--run", str(run), "--format", "labels", "--json"])
    assert json.loads(capsys.readouterr().out) == {"repeated": 14, "left_out": []}
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"id": 1}\n')
    with pytest.raises(UserError, match="it lacks annotator"):
        read_label_rows(wrong)
    with pytest.raises(SystemExit) as end:
        main(["annotations", "import", str(out), "--run", str(run)])
    assert end.value.code == 2
    assert "--who is missing" in capsys.readouterr().err


def _id_of(run: Path) -> str:
    return find_run(run, None).id


def main_ok(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert not end.value.code


def test_a_lead_saves_labels_over_the_api_and_an_annotator_does_not(service: FreshService) -> None:
    lead = service.client(Role.LEAD)
    assert lead.get(f"{API}/labels").text == ""
    empty = lead.get(f"{API}/labels?to=pku&form=parquet").content
    assert (rows := pq.read_table(io.BytesIO(empty))).num_rows == 0
    assert "prompt" in rows.column_names
    said(service.queue)
    expected = list(label_rows(service.queue.store))
    sent = lead.get(f"{API}/labels")
    assert [json.loads(line) for line in sent.text.splitlines()] == expected
    assert sent.headers["content-disposition"] == 'attachment; filename="labels.jsonl"'
    columns = lead.get(f"{API}/labels?form=parquet").content
    assert pq.read_table(io.BytesIO(columns)).column("id").to_pylist() == [row["id"] for row in expected]
    pairs = [json.loads(line) for line in lead.get(f"{API}/labels?to=pku").text.splitlines()]
    assert pairs
    assert all("better_response_id" in row for row in pairs)
    assert is_problem(lead.get(f"{API}/labels?to=csv"), 422)
    assert is_problem(service.client(Role.ANNOTATOR).get(f"{API}/labels"), 403)
