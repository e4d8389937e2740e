"""What a node is asked for before a run starts on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.session import needed_paths, problems_here
from pddpo_ray.config import load


def test_a_node_that_has_everything_has_no_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "marker").write_text("abc")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert problems_here([str(tmp_path)], str(tmp_path / "marker"), "abc", ["HF_TOKEN"]) == []


def test_everything_that_is_missing_is_named_and_no_value_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (tmp_path / "marker").write_text("of another machine")
    problems = problems_here([str(tmp_path / "model")], str(tmp_path / "marker"), "abc", ["HF_TOKEN"])
    assert len(problems) == 3
    assert problems[0].endswith("model does not exist")
    assert "is not the driver's: mount shared storage there" in problems[1]
    assert problems[2].startswith("secret HF_TOKEN is neither in the environment nor in")


def test_paths_of_a_recipe_are_its_model_and_its_world_file() -> None:
    assert needed_paths(load("text-world")) == []
    assert needed_paths(load("text-world", ["model.reference=/mnt/m"], check_files=False)) == ["/mnt/m"]
    assert needed_paths(load("tabular", ["world.path=/mnt/w.json"], check_files=False)) == ["/mnt/w.json"]
