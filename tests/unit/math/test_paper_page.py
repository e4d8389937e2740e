"""docs/paper.md and its study name functions and tests that exist, and covers every erratum."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
NAMES = PAGE + (ROOT / "lab" / "studies" / "paper-verified.md").read_text(encoding="utf-8")
FUNCTIONS = sorted(set(re.findall(r"`(pddpo_ray\.[\w.]+)`", NAMES)))
TESTS = sorted(set(re.findall(r"`(test_\w+)`", NAMES)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_that_the_page_names_exists(name: str) -> None:
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[split:]:
            assert attribute in dir(found) or attribute in getattr(found, "__dataclass_fields__", {})
            found = getattr(found, attribute, None)
        return
    pytest.fail(f"{name} is in no module")


def test_every_test_that_the_page_names_exists() -> None:
    defined = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))
    }
    assert set(TESTS) <= defined


def test_every_erratum_has_a_row() -> None:
    assert re.findall(r"^\| (E\d\d) \|", PAGE, re.MULTILINE) == [f"E{number:02}" for number in range(1, 25)]
