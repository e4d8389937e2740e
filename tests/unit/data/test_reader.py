"""Rows as people have them are read whole, or set aside by the name of what would be lost."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet as pq

from pddpo_ray.cli.main import main
from pddpo_ray.data import Example, Settings, inspect
from pddpo_ray.data.checks.problems import RowError
from pddpo_ray.data.formats.columns import HEADS, QUESTIONS, is_about
from pddpo_ray.data.formats.dialogue import ROLES
from pddpo_ray.data.formats.standard import read_row, recognise
from tests.support.reader_cases import ASK, CASES, PAIR, Case, Read, bot, page, user
from tests.unit.data.test_layouts import LAYOUTS, numbered, settings

WORDS = st.text("abcdefghijklmnopqrstuvwxyz", min_size=3, max_size=9)
SENTENCES = st.lists(WORDS, min_size=4, max_size=8).map(" ".join)


def read(row: dict[str, Any]) -> Example:
    form = recognise(row)
    assert form is not None, row
    return read_row(row, form, "helpful")


def as_read(example: Example) -> Read:
    turns = tuple(f"{turn.role}: {turn.content}" for turn in example.prompt)
    return Read(turns, tuple(answer.text for answer in example.answers), example.better)


@pytest.mark.parametrize("case", CASES, ids=[f"{case.group}: {case.what}" for case in CASES])
def test_a_row_is_read_whole_or_named(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(case.row) + "\n", encoding="utf-8")
    found = inspect([str(file)], Settings())
    if isinstance(case.right, Read):
        (good,) = found.examples()
        assert as_read(good.example) == case.right
    else:
        (problem,) = found.problems
        assert problem.kind == case.right.kind
        assert case.right.words in problem.reason


def test_the_page_is_the_tests_table() -> None:
    kept = (Path(__file__).parents[3] / "docs" / "reader.md").read_text(encoding="utf-8")
    assert kept == page(), "python -m tests.support.reader_cases > docs/reader.md"


# --- every layout ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_one_column_more_that_holds_text_is_never_passed_over(name: str) -> None:
    layout = LAYOUTS[name]
    rows = [row | {"passage": f"It rained all of day {number}."} for number, row in enumerate(numbered(layout))]
    found = inspect([rows], settings(layout))
    assert dict(found.kinds) == {"unread-text": len(rows)}, found.problems
    assert "--column" in found.problems[0].reason
    assert "--ignore passage" in found.problems[0].reason
    given = Settings(means=layout.means, columns={**layout.columns, "context": "passage"})
    if "context" not in layout.row:
        for number, good in enumerate(inspect([rows], given).examples()):
            assert f"day {number}." in good.example.prompt[-1].content
    ignored = Settings(means=layout.means, columns=layout.columns, ignore=frozenset({"passage"}))
    assert inspect([rows], ignored).good == len(rows)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if LAYOUTS[name].suffix == "jsonl"])
def test_a_system_column_is_the_first_turn_of_every_layout(name: str) -> None:
    layout = LAYOUTS[name]
    if '"system"' in json.dumps(layout.row):
        return  # a message of its own
    rows = [{**row, "system_prompt": f"You are number {number}."} for number, row in enumerate(numbered(layout))]
    found = inspect([rows], settings(layout))
    prompts = [good.example.prompt for good in found.examples()]
    assert [prompt[0].content for prompt in prompts] == [f"You are number {number}." for number in range(len(rows))]


@pytest.mark.parametrize("name", [name for name in LAYOUTS if LAYOUTS[name].suffix == "jsonl"])
def test_columnar_files_say_what_json_lines_say(name: str, tmp_path: Path) -> None:
    """Arrow gives every object of a column the fields of all of them, as nulls."""
    layout = LAYOUTS[name]
    rows = numbered(layout)
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    of_lines, of_columns = (inspect([source], settings(layout)) for source in (rows, str(file)))
    assert [good.example for good in of_columns.examples()] == [good.example for good in of_lines.examples()]
    assert of_columns.good == len(rows)


def test_two_kinds_of_messages_in_one_column_are_read_from_parquet(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Is salt a rock?"}, {"from": "gpt", "value": "A mineral."}]
    rows = [{"conversations": turns}, {"conversations": [user("Is coal?"), bot("Yes.")]}, {"conversations": turns[:2]}]
    rows[2] = {"conversations": [{**turns[0], "value": "Is ice?"}, turns[1]]}
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    assert inspect([str(file)], Settings()).good == len(rows)


# --- properties ------------------------------------------------------------------------------------------------------


@given(st.sampled_from(QUESTIONS), SENTENCES, SENTENCES, st.sampled_from(["context", "input"]))
def test_all_pieces_of_a_prompt_are_in_it(question: str, asked: str, more: str, column: str) -> None:
    example = read({question: asked, column: more, **PAIR})
    assert asked in example.prompt[-1].content
    assert more in example.prompt[-1].content
    assert [answer.text for answer in example.answers] == list(PAIR.values())


@hypothesis.settings(max_examples=40)
@given(st.text("abcdefghijklmnopqrstuvwxyz_", min_size=4).filter(lambda name: name.strip("_") == name), SENTENCES)
def test_an_unknown_text_column_is_never_lost(name: str, text: str) -> None:
    row = {"prompt": ASK, name: text, **PAIR}
    found = inspect([[row]], Settings())
    if name not in HEADS and not is_about(name, text):
        assert name in found.problems[0].reason


@given(SENTENCES, SENTENCES, SENTENCES, st.sampled_from(["{} {}", "{}\n\n{}", "{}\n{}"]))
def test_a_repeated_prompt_is_taken_out_of_answers(asked: str, one: str, other: str, joint: str) -> None:
    if one == other:
        return
    example = read({"prompt": asked, "chosen": joint.format(asked, one), "rejected": joint.format(asked, other)})
    assert [answer.text for answer in example.answers] == [one, other]
    assert example.prompt[-1].content == asked


@given(st.sampled_from(sorted(ROLES)), st.sampled_from([str.lower, str.upper, str.title]))
def test_roles_are_known_in_any_case(role: str, case: Any) -> None:
    turn = {"role": case(role), "content": "Yes."}
    turns = {"system": [turn, user(ASK)], "user": [turn], "assistant": [user(ASK), turn]}[ROLES[role]]
    example = read({"messages": turns})
    assert example.prompt[0].role == ("user" if ROLES[role] == "assistant" else ROLES[role])


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.booleans())
def test_scores_decide_alike_as_text_and_as_numbers(high: float, low: float, text: bool) -> None:
    scores = {"chosen_score": repr(high) if text else high, "rejected_score": repr(low) if text else low}
    row = {"prompt": ASK, **PAIR, **scores}
    if high < low:
        with pytest.raises(RowError, match="chosen_score"):
            read(row)
    else:
        assert read(row).better == (None if high == low else 0)


# --- files and commands ----------------------------------------------------------------------------------------------


def test_scores_in_a_csv_file_are_numbers(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    with file.open("w", newline="") as sink:
        table = csv.writer(sink)
        table.writerow(["prompt", "chosen", "rejected", "score_chosen", "score_rejected"])
        table.writerows([["Which way?", "Up.", "Down.", "10", "9"], ["And then?", "Up.", "Down.", "2", "10"]])
    found = inspect([str(file)], Settings())
    assert (found.good, dict(found.kinds)) == (1, {"labels-disagree": 1})


def test_check_says_what_to_give_and_then_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"passage": "It is June.", "prompt": ASK, **PAIR}) + "\n")
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", str(file)])
    assert ended.value.code == 1
    assert "--column context=passage" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(
            ["data", "convert", str(file), "--column", "context=passage", "--to", "trl", "--out", f"{tmp_path}/o.jsonl"]
        )
    assert ended.value.code == 0
    assert json.loads((tmp_path / "o.jsonl").read_text())["prompt"] == f"It is June.\n\n{ASK}"
