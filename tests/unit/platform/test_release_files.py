"""Files for those who cite, report and contribute say what the package says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
LOCK = (ROOT / "requirements" / "py311.lock").read_text(encoding="utf-8")
MAKE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (citation["title"], citation["version"]) == (project["name"].replace("-", "_"), project["version"])
    assert citation["license"] == "Apache-2.0"
    assert {"cff-version", "message", "authors"} <= set(citation)


def test_the_table_of_versions_is_that_of_the_lock() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^\| ([a-z]+) \| ([\d.]+) \|", page, re.MULTILINE))
    assert {"torch", "vllm", "ray", "transformers", "deepspeed"} <= set(stated)
    for name, version in stated.items():
        found = re.search(rf"\b{name}(-cpu)?=={re.escape(version)}(\s|$)", LOCK + MAKE)
        assert found, (name, version)


@pytest.mark.parametrize("name", ["bug.yml", "idea.yml"])
def test_forms_of_issues_ask_something_each_under_a_name_of_its_own(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids)) > 1
    assert all(field["type"] == "textarea" and field["attributes"]["label"] for field in form["body"])
    assert form["body"][0]["validations"] == {"required": True}


def test_what_runs_before_a_commit_is_what_make_lint_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [one["repo"] for one in hooks] == ["local"], "nothing is downloaded"
    entries = [hook["entry"].removeprefix(".venv/bin/python -m ") for hook in hooks[0]["hooks"]]
    assert [entry.split()[0] for entry in entries] == ["ruff", "ruff", "mypy"]
    lint = MAKE.partition("\nlint:")[2].partition("\n\n")[0]
    for command in ("ruff check", "ruff format", "mypy"):
        assert command in lint
