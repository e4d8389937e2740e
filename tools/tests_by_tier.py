"""How many tests each tier holds, by subject: python -m tools.tests_by_tier

A subject is a folder of `tests` or `tests/unit`; tiers are those of CONTRIBUTING.md, each without the one before it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

ALONE = ("chaos", "real", "gpu")
"""Markers with a target of their own."""
STARTS = ("run", "slow", "ray", "vllm", "deepspeed", "browser", "postgres")
TIERS = ("check", "test", "full", *ALONE)


def tier(item: pytest.Item) -> str:
    marked = {marker.name for marker in item.iter_markers()}
    for name in (*ALONE, "full"):
        if name in marked:
            return name
    return "test" if marked & set(STARTS) else "check"


class Counted:
    """Plugin of pytest: counts what was collected, after tests/conftest.py has set its markers."""

    def __init__(self) -> None:
        self.tests: Counter[tuple[str, str]] = Counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            folder = item.path.relative_to(Path(session.config.rootpath) / "tests").parent
            self.tests[folder.name, tier(item)] += 1


def main() -> None:
    counted = Counted()
    with redirect_stdout(StringIO()):
        pytest.main(["--collect-only", "-q"], plugins=[counted])
    rows = sorted({subject for subject, _ in counted.tests})
    print(f"| subject | {' | '.join(TIERS)} |\n|---|{'---:|' * len(TIERS)}")
    for subject in rows:
        print(f"| {subject} | {' | '.join(str(counted.tests[subject, one]) for one in TIERS)} |")
    print(f"| all | {' | '.join(str(sum(counted.tests[row, one] for row in rows)) for one in TIERS)} |")


if __name__ == "__main__":
    main()
