"""What `make audit` says of pip-audit's document."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

REPORT = runpy.run_path(str(Path(__file__).parents[3] / "requirements" / "audit.py"))["report"]
FLAW = {"id": "PYSEC-1", "fix_versions": ["2.0"], "aliases": [], "description": "long"}


@pytest.mark.parametrize("document", [None, {"dependencies": [{"name": "a", "skip_reason": "not found"}]}])
def test_where_no_database_answers_one_line_says_so_and_nothing_fails(document: Any) -> None:
    assert REPORT(document) == (["audit: no advisory database answered here, so nothing was audited"], 0)


def test_a_known_vulnerability_is_named_with_what_mends_it_and_the_code_says_so() -> None:
    packages = [
        {"name": "a", "version": "1.0", "vulns": [FLAW, {**FLAW, "id": "PYSEC-2", "fix_versions": []}]},
        {"name": "b", "version": "1.0", "vulns": []},
        {"name": "own", "skip_reason": "not found"},
    ]
    lines, code = REPORT({"dependencies": packages, "fixes": []})
    assert lines == [
        "a 1.0: PYSEC-1, mended in 2.0",
        "a 1.0: PYSEC-2, mended in no version yet",
        "audit: 2 known vulnerabilities in 2 packages; 1 are in no advisory database",
    ]
    assert code == 1
    assert REPORT({"dependencies": packages[1:2], "fixes": []}) == (["audit: 0 known vulnerabilities in 1 packages"], 0)
