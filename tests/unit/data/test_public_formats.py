"""Public layouts are read or refused, every label of theirs is accounted for, and nothing is dropped in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.cli.main import main
from pddpo_ray.config import load
from pddpo_ray.data import Settings
from pddpo_ray.data.checks.inspection import inspect
from pddpo_ray.data.checks.problems import RowError
from pddpo_ray.data.formats.dialogue import Means
from pddpo_ray.data.formats.standard import FORMATS, read_row, recognise
from pddpo_ray.errors import UserError

ASSISTANT = {"role": "assistant", "content": "b"}
ARGILLA = {"prompt": "q", "response-1": "a", "response-2": "b"}


def vote(value: Any, status: str = "submitted") -> dict[str, Any]:
    return {"value": value, "status": status, "user_id": "u"}


def pairwise(side: str, cancelled: bool = False) -> dict[str, Any]:
    return {"was_cancelled": cancelled, "result": [{"type": "pairwise", "value": {"selected": side}}]}


USER = [{"role": "user", "content": "q"}]
PAIR = {"prompt": "q", "response_1": "a", "response_2": "b"}
RIGHT = [pairwise("right"), pairwise("left", cancelled=True)]
SHP = {
    "history": "q",
    "human_ref_A": "a",
    "human_ref_B": "b",
    "labels": 0,
    "score_A": 2,
    "score_B": 9,
    "score_ratio": 4.5,
}
SHARE = [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}]
NESTED = {"id": "1", "fields": ARGILLA, "responses": {"preference": [vote("response-2"), vote(2), vote(1, "draft")]}}
FLAT = {**ARGILLA, "preference": [vote("response-1"), vote("response-2"), vote("response-2")]}
COLUMNS = {**ARGILLA, "best.responses": ["response-1", "response-2"], "best.responses.status": ["draft", "submitted"]}
STUDIO = {"id": 7, "data": {"prompt": "q", "answer1": "a", "answer2": "b"}}


@pytest.mark.parametrize(
    ("row", "form", "answers", "better"),
    [
        (SHP, "shp", ["a", "b"], 1),
        ({**SHP, "labels": 1, "score_A": 9, "score_B": 2}, "shp", ["a", "b"], 0),
        ({**PAIR, "preference_strength": 3}, "helpsteer", ["a", "b"], 1),
        ({**PAIR, "preference_strength": 0}, "helpsteer", ["a", "b"], None),
        (
            {"context": USER, "response1": "a", "response2": "b", "overall_preference": -2},
            "helpsteer", ["a", "b"], 0,
        ),
        ({"conversations": SHARE, "chosen": {"from": "gpt", "value": "a"}, "rejected": {"from": "gpt", "value": "b"}},
         "sharegpt", ["a", "b"], 0),
        ({"conversations": [*SHARE, {"from": "gpt", "value": "a"}]}, "sharegpt", ["a"], None),
        ({"messages": [{"role": "user", "content": "q"}, ASSISTANT]}, "conversation", ["b"], None),
        (NESTED, "argilla", ["a", "b"], 1),
        (FLAT, "argilla", ["a", "b"], 1),
        ({**ARGILLA, "preference": [vote("response-1"), vote("response-2")]}, "argilla", ["a", "b"], None),
        ({**STUDIO, "annotations": RIGHT}, "label-studio", ["a", "b"], 1),
        ({**STUDIO, "annotations": []}, "label-studio", ["a", "b"], None),
        ({"system": "s", "question": "q", "chosen": "a", "rejected": "b"}, "trl", ["a", "b"], 0),
        ({"instruction": "q", "input": "more", "output": "a"}, "answers", ["a"], None),
        ({"prompt": "q", "chosen": [ASSISTANT], "rejected": [{**ASSISTANT, "content": "c"}], "score_chosen": 8.0,
          "score_rejected": 3.5}, "trl-chat", ["b", "c"], 0),
    ],
)  # fmt: skip
def test_a_public_layout_is_recognised_and_its_label_kept(
    row: dict[str, Any], form: str, answers: list[str], better: int | None
) -> None:
    known = recognise(row)
    assert known is not None
    assert known.name == form
    example = read_row(row, known, "helpful")
    assert [answer.text for answer in example.answers] == answers
    assert (example.better, example.safer) == (better, None)
    assert example.prompt[-1].content in ("q", "q\n\nmore")


def test_a_columnar_argilla_export_counts_submitted_answers_alone() -> None:
    assert (
        read_row({**COLUMNS, "best.responses.status": ["draft", "submitted"]}, FORMATS["argilla"], "helpful").better
        == 1
    )


def test_system_turns_stay() -> None:
    for row in (
        {"system": "s", "prompt": "q", "chosen": "a", "rejected": "b"},
        {"conversations": SHARE, "chosen": {"from": "gpt", "value": "a"}, "rejected": {"from": "gpt", "value": "b"}},
        {"system": "s", "instruction": "q", "output": "a"},
        {"system": "s", "prompt": "q"},
    ):
        form = recognise(row)
        assert form is not None
        assert [(turn.role, turn.content) for turn in read_row(row, form, "helpful").prompt] == [
            ("system", "s"),
            ("user", "q"),
        ]


@pytest.mark.parametrize(("means", "safe"), [("harmless", False), ("both", False)])
def test_a_judged_single_answer_is_a_safety_label_if_that_is_what_it_means(means: Means, safe: bool) -> None:
    row = {"prompt": "q", "completion": "a", "label": False}
    assert read_row(row, FORMATS["kto"], means).answers[0].safe is safe
    turns = {"prompt": [{"role": "user", "content": "q"}], "completion": [{**ASSISTANT, "content": "a"}], "label": True}
    assert read_row(turns, FORMATS["kto"], means).answers[0].safe is True


@pytest.mark.parametrize(
    ("row", "kind", "says"),
    [
        ({"prompt": "q", "completion": "a", "label": True}, "unpaired-label", "--means harmless"),
        ({"prompt": "q", "response": "a", **dict.fromkeys(("helpfulness", "correctness", "coherence", "complexity",
          "verbosity"), 3)}, "unpaired-label", "grades of one answer"),
        ({**SHP, "labels": 1}, "labels-disagree", "the votes are 2 and 9"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "chosen_score": 1.0, "rejected_score": 4.0},
         "labels-disagree", "`chosen_score` is 1 and `rejected_score` is 4"),
        ({"prompt": "q", "chosen": "a", "rejected": "b", "margin": 2.0}, "unread-label", "`margin` would be lost"),
        ({"prompt": "q", "response": "a", "quality": 5}, "unread-label", "`quality` would be lost"),
        ({"prompt": "q", "reply": "a", "label": True}, "unread-label", "`label` would be lost"),
        ({"prompt": "q", "response": "a", "Rating": 5}, "unread-label", "--ignore"),
        ({**STUDIO, "annotations": [{"result": [{"type": "rating", "value": {"rating": 4}}]}]},
         "unread-label", "a result of type 'rating'"),
        ({**STUDIO, "annotations": [pairwise("middle")]}, "label-out-of-range", "'middle'"),
        ({**PAIR, "preference_strength": "much"}, "wrong-type", "'much'"),
        ({"messages": [ASSISTANT]}, "wrong-turns", "must alternate"),
        ({"prompt": "q", "chosen": "\u200b\u2060 \u3164", "rejected": "b"}, "empty-text", "nothing that can be seen"),
        ({"fields": {"prompt": "q", "response-1": "a", "response-2": "b"},
          "responses": {"one": [vote(1)], "two": [vote(2)]}}, "unread-label", "several questions"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_by_name(row: dict[str, Any], kind: str, says: str) -> None:
    form = recognise(row)
    assert form is not None
    with pytest.raises(RowError, match=says) as said:
        read_row(row, form, "helpful")
    assert said.value.kind == kind


def written(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_fields_that_say_nothing_are_named_and_labels_wait_for_a_decision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"ask": "q", "chosen": "a", "rejected": "b", "margin": 2.0, "source": "web"}
    name = written(tmp_path / "rows.jsonl", row, {**row, "ask": "p"})
    with pytest.raises(SystemExit):
        main(["data", "check", name])
    out = capsys.readouterr().out
    assert "2 missing-field" in out
    assert "--column prompt=ask" in out
    with pytest.raises(SystemExit):
        main(["data", "check", name, "--column", "prompt=ask"])
    assert "2 unread-label" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", name, "--column", "prompt=ask", "--ignore", "margin"])
    assert ended.value.code == 0
    assert "fields not used: source (2 rows)" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["data", "check", name, "--column", "prompt"])
    assert "--column prompt: write NAME=THEIRS" in capsys.readouterr().err


def test_prompts_alone_may_leave_labels(tmp_path: Path) -> None:
    name = written(tmp_path / "rows.jsonl", {"prompt": "q", "label": "safe"})
    assert inspect([name], Settings(judged=False)).good == 1
    assert inspect([name], Settings()).kinds == {"unread-label": 1}
    rows = [{"question": "q", "Best Answer": "It is so.", "reference": "It is."}]
    assert inspect([rows], Settings(judged=False)).good == 1
    assert inspect([rows], Settings()).kinds == {"unread-text": 1}
    assert inspect([[{**rows[0], "passage": "It was."}]], Settings(judged=False)).kinds == {"unread-text": 1}


def test_a_file_with_semicolons_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('prompt;chosen;rejected\n"a; b, c, d";so;no\n')
    (row,) = inspect([str(path)], Settings()).examples()
    assert row.example.prompt[0].content == "a; b, c, d"


def test_a_run_takes_names_of_columns() -> None:
    config = load("real-text", ["data.columns={prompt: ask}", "data.ignore=[margin]"])
    assert config.data.columns == {"prompt": "ask"}  # type: ignore[union-attr]
    with pytest.raises(UserError):
        load("real-text", ["data.columns=ask"])
