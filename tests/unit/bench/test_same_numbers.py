"""The comparison of two checkouts: it reads what the journal holds, and names the first number that differs."""

from __future__ import annotations

import copy
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.config import load, recipe_names
from tests.unit.loop.small_run import finish, small
from tools import run_numbers
from tools.run_numbers import numbers_of, questions_of
from tools.same_numbers import answer, compare, main
from tools.small_runs import LEFT_OUT, cases

ROOT = Path(__file__).resolve().parents[3]
RECORDED: dict[str, Any] = {
    "versions": {"reference": "aa", "policy-1": "bb"},
    "multipliers": {"round 1 cost": "0.25 1.0 0.875"},
    "labels": {"round 1 safety": "cc"},
    "texts": {"round 1 answers": "dd"},
}


def recording(**runs: Any) -> dict[str, Any]:
    return {"made with": {}, "runs": {name: copy.deepcopy(run) for name, run in runs.items()}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Journal of a tabular run, and its story as the product tells it."""
    folder = tmp_path_factory.mktemp("same") / "run"
    told = finish(small(), folder)
    return folder / "journal.sqlite", told


@pytest.mark.run
def test_versions_and_multipliers_are_those_of_the_journal_to_the_last_digit(run: tuple[Path, dict[str, Any]]) -> None:
    journal, told = run
    found = numbers_of(journal)
    assert found["versions"] == {version.name: version.sha256 for version, *_ in told["versions"]}
    assert found["multipliers"] == {
        f"round {step.round} cost": f"{step.estimate.value!r} {step.multiplier_before!r} {step.multiplier_after!r}"
        for step in told["dual"]
    }
    assert list(found["labels"]) == [
        *["round 0 pairs", "round 1 pairs", "round 1 safety", "round 2 pairs", "round 2 safety"]
    ]


@pytest.mark.run
def test_one_changed_label_or_text_changes_the_hash_of_its_round_alone(
    run: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    journal, _ = run
    before = numbers_of(journal)
    for change, what, which in (
        ("UPDATE measurement SET value = 1 - value WHERE round = 2 AND position = 0", "labels", "round 2 safety"),
        ("UPDATE pair_label SET helpful = 'none' WHERE pair LIKE '1-%'", "labels", "round 1 pairs"),
        ("UPDATE sample SET token_ids = '[999]' WHERE id = '1-cost-0-0'", "texts", "round 1 answers"),
    ):
        changed = tmp_path / "changed.sqlite"
        shutil.copy(journal, changed)
        with closing(sqlite3.connect(changed)) as database, database:
            assert database.execute(change).rowcount
        after = numbers_of(changed)
        assert [name for name in before[what] if before[what][name] != after[what][name]] == [which]


@pytest.mark.run
def test_a_renamed_table_or_column_is_read_once_its_name_is_listed(
    run: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = run
    renamed = tmp_path / "renamed.sqlite"
    shutil.copy(journal, renamed)
    with closing(sqlite3.connect(renamed)) as database, database:
        database.execute("ALTER TABLE dual_step RENAME TO ascent")
        database.execute("ALTER TABLE ascent RENAME COLUMN value TO estimate")
    with pytest.raises(LookupError, match=r"dual_step is not among .*LATER"):
        numbers_of(renamed)
    monkeypatch.setitem(run_numbers.LATER, "dual_step", ["ascent"])
    monkeypatch.setitem(run_numbers.LATER, "dual_step.value", ["estimate"])
    assert numbers_of(renamed) == numbers_of(journal)
    assert questions_of(renamed) == []


@pytest.mark.run
def test_a_difference_is_named_with_both_values() -> None:
    before = recording(table=RECORDED, text=RECORDED)
    assert compare(before, before)[1] == []
    after = copy.deepcopy(before)
    after["runs"]["text"]["multipliers"]["round 1 cost"] = "0.25 1.0 0.8750000000000001"
    lines, differences = compare(before, after)
    assert [line.count("DIFFER") for line in lines] == [0, 0, 1]
    assert differences == [
        "text: multipliers: round 1 cost was 0.25 1.0 0.875, is 0.25 1.0 0.8750000000000001",
    ]


@pytest.mark.run
def test_a_version_too_many_and_a_run_that_failed_are_differences_and_a_new_run_is_none() -> None:
    more = copy.deepcopy(RECORDED)
    more["versions"]["policy-2"] = "ee"
    lines, differences = compare(
        recording(a=RECORDED, b=RECORDED), recording(a=more, b={"failed": "exit code 1"}, c=RECORDED)
    )
    assert differences == [
        "a: versions: policy-2 was None, is ee",
        "b: ran before, exit code 1 after",
    ]
    assert lines[-1] == "only after: c"


@pytest.mark.slow
def test_every_shipped_recipe_has_a_small_size_that_loads() -> None:
    planned = cases(recipe_names())
    assert set(recipe_names()) - set(LEFT_OUT) <= {case.recipe for case in planned}
    assert set(LEFT_OUT) <= set(recipe_names())
    assert {case.mode for case in planned} == {"one process", "Ray"}
    assert len({case.key for case in planned}) == len(planned)
    for case in planned:
        config = load(case.recipe, case.overrides)
        assert config.rounds <= 4
        assert (config.cluster.mode == "ray") == (case.mode == "Ray")


def test_what_people_say_follows_from_their_name_and_the_texts() -> None:
    pair = {"prompt": "p", "first": "one", "second": "two"}
    turned = {"prompt": "p", "first": "two", "second": "one"}
    said, again = answer("ana", pair), answer("ana", turned)
    assert said["safer_response_id"] == 1 - again["safer_response_id"]
    assert said["better_response_id"] == 1 - again["better_response_id"]
    safety = {"prompt": "p", "first": "one", "second": None}
    assert {answer(who, safety)["is_safe"] for who in ("ana", "ben", "cem", "dee", "eve")} == {True, False}


@pytest.mark.full
@pytest.mark.slow
def test_a_recording_of_this_checkout_equals_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / name) for name in ("before.json", "after.json")]
    for file in files:
        arguments = ["record", "--tree", str(ROOT), "--out", file, "--no-ray", "--only", "table/o-pd-dpo"]
        assert main(arguments) == 0
    stored = json.loads(Path(files[0]).read_text())
    assert list(stored["runs"]["table/o-pd-dpo (one process)"]["versions"])[-1] == "policy-3"
    assert main(["compare", *files]) == 0
    assert "0 differences" in capsys.readouterr().out
