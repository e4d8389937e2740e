"""Public layouts as files: each row is accounted for, each label is kept, and no field that holds one is passed over.

The rows are made here, in the layouts that the data sets and tools publish.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from datasets import Dataset

from pddpo_ray.data import Settings, inspect
from pddpo_ray.data.formats.columns import unread_labels
from pddpo_ray.data.formats.dialogue import Means
from tests.support.data_rows import pku
from tests.unit.data.test_damage import DAMAGE

ROWS = 3


class Layout(NamedTuple):
    """A layout by its format here, a row of it for a number, and the labels that the row holds."""

    form: str
    row: Mapping[str, Any]
    better: int = 0
    safer: int = 0
    safe: int = 0
    means: Means = "helpful"
    suffix: str = "jsonl"
    columns: Mapping[str, str] = {}


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def turn(who: str, text: str) -> dict[str, str]:
    return {"from": who, "value": text}


def vote(value: Any) -> dict[str, Any]:
    return {"value": value, "status": "submitted", "user_id": "u"}


HUMAN = "\n\nHuman: Q#?\n\nAssistant:"
HARM = {"Violence": False, "Drugs": False}
PAIR = {"prompt": "Q#?", "chosen": "Yes #.", "rejected": "No #."}
TWO = {"prompt": "Q#?", "response_0": "Yes #.", "response_1": "No #."}
SAFETY = {"is_response_0_safe": True, "is_response_1_safe": False, "safer_response_id": 0}
REPLIES = {"chosen": [said("assistant", "Yes #.")], "rejected": [said("assistant", "No #.")]}
WHOLE = {name: [said("user", "Q#?"), said("assistant", f"{word} #.")] for name, word in
         (("chosen", "Yes"), ("rejected", "No"))}  # fmt: skip
ASKED = {"prompt": "Q#?", "response-1": "Yes #.", "response-2": "No #."}

LAYOUTS = {
    "PKU-SafeRLHF": Layout("pku", {**TWO, **SAFETY, "better_response_id": 1}, better=1, safer=1, safe=2),
    "PKU-SafeRLHF with severities": Layout(
        "pku",
        {**TWO, **SAFETY, "better_response_id": 1, "prompt_source": "x", "response_0_source": "m",
         "response_1_source": "m", "response_0_harm_category": HARM,
         "response_1_harm_category": {**HARM, "Drugs": True},
         "response_0_severity_level": 0, "response_1_severity_level": 2},
        better=1, safer=1, safe=2,
    ),
    "PKU-SafeRLHF, helpfulness alone": Layout("pku", {**TWO, "better_response_id": 0}, better=1),
    "PKU-SafeRLHF, safety alone": Layout("pku", {**TWO, **SAFETY}, safer=1, safe=2),
    "PKU-SafeRLHF-QA": Layout(
        "pku-qa", {"prompt": "Q#?", "response": "A #.", "is_safe": True, "severity_level": 0, "harm_category": HARM},
        safe=1,
    ),
    "PKU-SafeRLHF-QA by severity": Layout(
        "pku-qa", {"prompt": "Q#?", "response": "A #.", "severity_category": 0, "safety_category": HARM}, safe=1
    ),
    "BeaverTails": Layout(
        "pku-qa", {"prompt": "Q#?", "response": "A #.", "category": HARM, "is_safe": True}, safe=1
    ),
    "HH-RLHF": Layout("hh", {"chosen": f"{HUMAN} Yes #.", "rejected": f"{HUMAN} No #."}, better=1),
    "HH-RLHF, harmless half": Layout(
        "hh", {"chosen": f"{HUMAN} Yes #.", "rejected": f"{HUMAN} No #."}, safer=1, means="harmless"
    ),
    "TRL": Layout("trl", PAIR, better=1),
    "TRL, implicit prompt in turns": Layout(
        "hh", {"chosen": "User: Q#?\nAssistant: Yes.", "rejected": "User: Q#?\nAssistant: No."}, better=1
    ),
    "TRL, conversational": Layout("trl-chat", {"prompt": [said("user", "Q#?")], **REPLIES}, better=1),
    "TRL, conversational with an implicit prompt": Layout("trl-chat", WHOLE, better=1),
    "UltraFeedback, binarized": Layout(
        "trl-chat",
        {"prompt": "Q#?", "prompt_id": "p#", **WHOLE, "messages": WHOLE["chosen"], "score_chosen": 8.5,
         "score_rejected": 3.0},
        better=1,
    ),
    "Orca pairs": Layout("trl", {"system": "s", "question": "Q#?", "chosen": "Yes #.", "rejected": "No #."}, better=1),
    "SHP": Layout(
        "shp",
        {"post_id": "p#", "history": "Q#?", "human_ref_A": "Yes #.", "human_ref_B": "No #.", "labels": 1, "score_A": 9,
         "score_B": 3, "score_ratio": 3.0},
        better=1,
    ),
    "HelpSteer2 preferences": Layout(
        "helpsteer",
        {"prompt": "Q#?", "response_1": "Yes #.", "response_2": "No #.", "preference_strength": -2},
        better=1,
    ),
    "HelpSteer3": Layout(
        "helpsteer",
        {"context": [said("user", "Q#?")], "response1": "Yes #.", "response2": "No #.", "overall_preference": 3},
        better=1,
    ),
    "KTO": Layout("kto", {"prompt": "Q#?", "completion": "A #.", "label": True}, safe=1, means="harmless"),
    "KTO, conversational": Layout(
        "kto", {"prompt": [said("user", "Q#?")], "completion": [said("assistant", "A #.")], "label": False}, safe=1,
        means="harmless",
    ),
    "ShareGPT pairs": Layout(
        "sharegpt",
        {"conversations": [turn("system", "s"), turn("human", "Q#?")], "chosen": turn("gpt", "Yes #."),
         "rejected": turn("gpt", "No #.")},
        better=1,
    ),
    "ShareGPT": Layout("sharegpt", {"id": "c#", "conversations": [turn("human", "Q#?"), turn("gpt", "A #.")]}),
    "messages for supervised training": Layout(
        "conversation", {"messages": [said("system", "s"), said("user", "Q#?"), said("assistant", "A #.")]}
    ),
    "Argilla, nested": Layout(
        "argilla", {"id": "r#", "fields": ASKED, "responses": {"preference": [vote("response-2")]}}, better=1
    ),
    "Argilla, flat": Layout("argilla", {**ASKED, "preference": [vote("response-1")]}, better=1),
    "Argilla, columns": Layout(
        "argilla",
        {**ASKED, "best.responses": ["response-1", "response-2"], "best.responses.status": ["draft", "submitted"]},
        better=1,
    ),
    "Label Studio": Layout(
        "label-studio",
        {"id": "t#", "data": {"prompt": "Q#?", "answer1": "Yes #.", "answer2": "No #."},
         "annotations": [{"result": [{"type": "pairwise", "value": {"selected": "left"}}]}]},
        better=1,
    ),
    "Alpaca": Layout("answers", {"instruction": "Q#?", "input": "more", "output": "A #."}),
    "questions with categories": Layout("prompts", {"prompt": "Q#?", "category": "Privacy"}),
    "questions as turns": Layout("prompts", {"messages": [said("system", "s"), said("user", "Q#?")]}),
    "plain pairs": Layout("pairs", {"prompt": "Q#?", "better": "Yes #.", "worse": "No #."}, better=1),
    "plain pairs of harm": Layout("pairs", {"prompt": "Q#?", "cheaper": "Yes #.", "costlier": "No #."}, safer=1),
    "CSV with semicolons": Layout("trl", PAIR, better=1, suffix="csv;"),
    "TSV": Layout("trl", PAIR, better=1, suffix="tsv"),
    "names of one's own": Layout(
        "trl", {"ask": "Q#?", "good": "Yes #.", "bad": "No #."}, better=1,
        columns={"prompt": "ask", "chosen": "good", "rejected": "bad"},
    ),
}  # fmt: skip


def numbered(layout: Layout) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(layout.row).replace("#", str(number))) for number in range(ROWS)]


def written(folder: Path, layout: Layout) -> str:
    rows, path = numbered(layout), folder / f"rows.{layout.suffix.rstrip(';')}"
    if layout.suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        sink = io.StringIO()
        table = csv.DictWriter(sink, list(rows[0]), delimiter=";" if layout.suffix == "csv;" else "\t")
        table.writeheader()
        table.writerows(rows)
        path.write_text(sink.getvalue())
    return str(path)


def settings(layout: Layout) -> Settings:
    return Settings(means=layout.means, columns=layout.columns)


def labels(found: Any) -> tuple[int, int, int]:
    """Better, safer and safe labels of all rows."""
    rows = [good.example for good in found.examples()]
    return (
        sum(row.better is not None for row in rows),
        sum(row.safer is not None for row in rows),
        sum(answer.safe is not None for row in rows for answer in row.answers),
    )


def test_no_layout_and_no_damage_leaves_the_list() -> None:
    assert len(LAYOUTS) >= 33
    assert len(DAMAGE) >= 31


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_row_of_a_layout_and_every_label_is_kept(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    found = inspect([written(tmp_path, layout)], settings(layout))
    assert (found.rows, found.good, dict(found.kinds)) == (ROWS, ROWS, {}), found.problems
    assert found.files[0].format == layout.form
    assert labels(found) == (ROWS * layout.better, ROWS * layout.safer, ROWS * layout.safe)
    assert unread_labels(found.unread) == []


@pytest.mark.parametrize("name", LAYOUTS)
def test_one_column_more_that_holds_a_judgement_is_never_passed_over(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    more = layout._replace(row={**layout.row, "human_rating": 4})
    found = inspect([written(tmp_path, more)], settings(layout))
    assert (found.good, dict(found.kinds)) == (0, {"unread-label": ROWS}), found.problems
    left_out = inspect([written(tmp_path, more)], Settings(means=layout.means, columns=layout.columns,
                                                           ignore=frozenset({"human_rating"})))  # fmt: skip
    assert left_out.good == ROWS


@pytest.mark.parametrize("name", ["TRL", "TRL, conversational", "PKU-SafeRLHF with severities"])
def test_a_data_set_in_memory_is_read_as_its_file_is(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    of_file = inspect([written(tmp_path, layout)], settings(layout))
    found = inspect([Dataset.from_list(numbered(layout))], settings(layout))
    assert [one.example for one in found.examples()] == [one.example for one in of_file.examples()]
    assert found.rows == ROWS


def test_what_is_wrong_in_a_data_set_in_memory_has_its_row() -> None:
    rows = [pku(0), pku(1, better_response_id=7), pku(2)]
    found = inspect([rows], Settings())
    assert found.good == 2
    (problem,) = found.problems
    assert (problem.file, problem.line, problem.kind) == ("data set 1 in memory", 2, "label-out-of-range")


def test_a_second_question_of_an_argilla_record_is_not_lost(tmp_path: Path) -> None:
    layout = LAYOUTS["Argilla, nested"]
    answers = {"responses": {"preference": [vote("response-2")], "quality": [vote(4)]}}
    name = written(tmp_path, layout._replace(row={**layout.row, **answers}))
    found = inspect([name], Settings())
    assert dict(found.kinds) == {"unread-label": ROWS}
    assert "`quality` would be lost" in found.problems[0].reason
    assert inspect([name], Settings(ignore=frozenset({"quality"}))).good == ROWS
