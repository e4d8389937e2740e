"""Rules of installed packages: the example is installed and used, no file of this project changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from pddpo_ray.errors import UserError
from pddpo_ray.limits import rules

ROOT = Path(__file__).parents[3]
FRESH = rules.installed.__wrapped__
"""Looks at the entry points every time."""
EXAMPLE = ROOT / "examples" / "plugin"


def test_the_example_is_installed_and_its_rules_measure(tmp_path: Path) -> None:
    site, copy = tmp_path / "site", tmp_path / "plugin"
    copy.mkdir()
    for file in EXAMPLE.glob("*.*"):  # a build leaves files beside its source
        (copy / file.name).write_bytes(file.read_bytes())
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    install = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(copy)]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    (tmp_path / "limits.yaml").write_text(
        "limits:\n"
        "  thanks: {mean: {rule: courtesies}, at_most: 1, bounds: [0, 9]}\n"
        "  polite: {rate: {rule: polite}, at_least: 10 %}\n"
    )
    answers = ["Thanks! Please soak it.", "Soak it."]
    (tmp_path / "answers.jsonl").write_text(
        "".join(json.dumps({"prompt": text, "response": text}) + "\n" for text in answers)
    )
    checked = subprocess.run(
        [sys.executable, "-m", "pddpo_ray", "limits", "check", "limits.yaml", "--on", "answers.jsonl", "--json"],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])},
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    found = json.loads(checked.stdout)
    assert (found["thanks"]["estimate"], found["polite"]["estimate"]) == (1.0, 0.5)
    assert found["polite"]["note"] == "by two English phrases"


def given(monkeypatch: pytest.MonkeyPatch, *entries: EntryPoint) -> None:
    monkeypatch.setattr(rules, "entry_points", lambda group: [entry for entry in entries if entry.group == group])
    monkeypatch.setattr(rules, "installed", FRESH)


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, rules.GROUP)


def test_a_rule_that_cannot_be_loaded_or_is_none_says_which_package_brought_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, entry("gone", "no_such_module:RULE"), entry("words2", "pddpo_ray.limits.rules:words"))
    with pytest.raises(UserError, match="x: no_such_module:RULE cannot be loaded: ModuleNotFoundError"):
        rules.rule_of("x", "gone")
    with pytest.raises(UserError, match=r"words is no pddpo_ray\.limits\.rules\.Rule, but function"):
        rules.rule_of("x", "words2")
    with pytest.raises(UserError, match="there is no rule `gome`; did you mean `gone`"):
        rules.rule_of("x", "gome")


def test_two_rules_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, entry("words", "other:RULE"))
    with pytest.raises(UserError, match="other:RULE brings a rule `words`, and there is one already"):
        rules.rule_of("x", "new")
    given(monkeypatch, entry("new", "one:RULE"), entry("new", "two:RULE"))
    with pytest.raises(UserError, match="two:RULE brings a rule `new`"):
        rules.rule_of("x", "new")


def test_the_version_of_a_rule_follows_its_file() -> None:
    assert rules.version_of("words") == f"rule words {rules.digest(Path(rules.__file__))}"
