"""What is refused in one line before a run begins: folders, sizes and data files that cannot be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from pddpo_ray.cli.main import main
from pddpo_ray.cli.runs.train import demand_makeable
from pddpo_ray.config import load
from pddpo_ray.errors import UserError
from pddpo_ray.plan.warnings import demand_possible_sizes

PAIR = {"prompt": "How?", "chosen": "Like so.", "rejected": "No."}


def dry_run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["train", *words, "--dry-run"])
    return int(ended.value.code or 0)


def written(path: Path, *rows: Mapping[str, object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("run", ["file/run", "x" * 300, "/proc/nowhere/run"])
def test_a_folder_that_cannot_be_made_is_one_line(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["train", "tabular", "--run", run])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("pddpo: --run ")
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_looking_whether_a_folder_can_be_made_leaves_nothing(tmp_path: Path) -> None:
    demand_makeable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("rounds=99999999999999999999999", "has more than 18 digits"),
        ("rounds=1000001", "rounds never end"),
        ("feedback.responses=100000000000000", "feedback.responses=100000000000000: more than 1,000,000,000"),
    ],
)
def test_numbers_beyond_any_run_are_refused(override: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run("text-world", override) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_seeds_may_be_large() -> None:
    demand_possible_sizes(load("text-world", ["seed=4000000000"]))


@pytest.mark.slow
def test_a_dry_run_says_what_the_files_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = {"prompt": "How?", "chosen": "same", "rejected": "same"}
    name = written(tmp_path / "pairs.jsonl", PAIR, {**PAIR, "prompt": "Why?"}, bad)
    assert dry_run("real-text", f"data.helpful=[{name}]") == 0
    out = capsys.readouterr().out
    assert "data files" in out
    assert "trl: 2 of 3 rows are good; 1 equal-responses" in out


def test_a_dry_run_refuses_files_without_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = written(tmp_path / "safety.jsonl", {"prompt": "q", "response": "a", "is_safe": True})
    assert dry_run("real-text", f"data.helpful=[{name}]") == 2
    err = capsys.readouterr().err
    assert f"data.helpful: none of the first 1 rows of {name} says which of two answers is more helpful" in err


def test_a_dry_run_knows_the_templates(capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run("real-text", "data.template=chat-ml") == 2
    assert "there is no chat template 'chat-ml'" in capsys.readouterr().err


def test_the_sizes_of_every_recipe_are_possible() -> None:
    demand_possible_sizes(load("paper/c-dpo", check_files=False))
    with pytest.raises(UserError, match="offline"):
        demand_possible_sizes(load("text-world", ["offline.pairs=2000000000"]))
