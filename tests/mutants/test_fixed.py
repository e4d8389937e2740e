"""A wrong sign in the theory turns a test red: mutants that were chosen, each with the tests that must see it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.mutants.fixed import FIXED, Fixed
from tests.mutants.forks import ONE_THREAD
from tests.mutants.mutation import ROOT, apply, changed_functions, live_function
from tests.mutants.run_fixed import CHOSEN


@pytest.fixture(scope="module")
def reds(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str | None]:
    """Which test failed for each mutant, and under "" without any: all in one process of its own that forks."""
    answer = tmp_path_factory.mktemp("mutants") / "reds.json"
    hidden = ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS")
    environment = {key: value for key, value in os.environ.items() if key not in hidden} | ONE_THREAD
    command = [sys.executable, "-m", "tests.mutants.run_fixed", str(answer)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, str | None] = json.loads(answer.read_text())
    return found


def test_there_are_forty_and_no_name_twice() -> None:
    assert len({mutant.name for mutant in CHOSEN}) == len(CHOSEN)
    assert len(FIXED) >= 40


def test_every_reason_of_a_survivor_is_about_a_line_that_exists() -> None:
    """A line that was rewritten has other mutants: its reason is written anew or goes."""

    def packed(text: str) -> str:
        return re.sub(r"[\s,()]+", "", text)

    reasons = json.loads((ROOT / "tests" / "mutants" / "reasons.json").read_text(encoding="utf-8"))
    for change in reasons:
        path, function, line = re.fullmatch(r"(\S+) (\S+): (.*) -> .*", change).groups()  # type: ignore[union-attr]
        source = (ROOT / path).read_text(encoding="utf-8")
        assert packed(line) in packed(source), change
        assert f"def {function.rpartition('.')[2]}(" in source, change


@pytest.mark.parametrize("mutant", CHOSEN, ids=lambda mutant: mutant.name)
def test_each_changes_the_function_that_it_names(mutant: Fixed) -> None:
    original = (ROOT / mutant.path).read_text(encoding="utf-8")
    assert changed_functions(original, mutant.source) == [mutant.function]


@pytest.mark.full
def test_without_a_mutant_the_same_tests_pass(reds: Mapping[str, str | None]) -> None:
    assert reds[""] is None


@pytest.mark.full
@pytest.mark.parametrize("mutant", CHOSEN, ids=lambda mutant: mutant.name)
def test_each_turns_one_of_its_tests_red(mutant: Fixed, reds: Mapping[str, str | None]) -> None:
    red = reds[mutant.name]
    assert red is not None, f"{mutant.path} {mutant.function}: {mutant.mutated!r} is not seen by {mutant.tests}"
    assert red.split("::")[-1].split("[")[0] in mutant.tests


def test_a_formula_that_is_written_otherwise_now_is_named() -> None:
    gone = Fixed("no more", "pddpo_ray/theory/multipliers/dual.py", "ascend", "no such formula", "", ("test",))
    with pytest.raises(ValueError, match="mutant 'no more': 'no such formula' occurs 0 times"):
        _ = gone.source


def test_a_function_is_changed_wherever_it_was_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code and defaults; the module and those who imported from it before see the same function object."""
    before = (
        "class Box:\n    @property\n    def size(self):\n        return 1\n\n"
        "def scaled(x, by=2, *, plus=0):\n    return x * by + plus\n"
    )
    (tmp_path / "sample_of_mutation.py").write_text(before)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("tests.mutants.mutation.ROOT", tmp_path)
    import sample_of_mutation  # type: ignore[import-not-found]

    scaled, box = sample_of_mutation.scaled, sample_of_mutation.Box()
    after = (
        before.replace("return 1", "return 3").replace("by=2, *, plus=0", "by=5, *, plus=1").replace("+ plus", "- plus")
    )
    assert apply("sample_of_mutation.py", after) == ["Box.size", "scaled"]
    assert (scaled(10), scaled(10, 2, plus=0), box.size) == (49, 20, 3)
    assert live_function(sample_of_mutation, "scaled") is scaled
    with pytest.raises(ValueError, match="no function differs"):
        apply("sample_of_mutation.py", before)
