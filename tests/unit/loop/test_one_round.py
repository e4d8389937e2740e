"""docs/one-round.md says what a run does today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.one_round import PAGE, written

ROOT = Path(__file__).parents[3]


@pytest.mark.run
def test_the_page_of_one_round_is_what_a_run_says(tmp_path: Path) -> None:
    """Hashes depend on the machine's rounding of the last digit; every other word and number is compared."""

    def comparable(page: str) -> str:
        return re.sub(r"hash `[0-9a-f]{12}`", "hash", page)

    assert comparable(written(tmp_path / "one-round")) == comparable(PAGE.read_text(encoding="utf-8"))


def test_every_file_that_the_page_names_is_there() -> None:
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 15
    for name in named:
        assert (ROOT / name).is_file() or (ROOT / "pddpo_ray" / name).is_file(), name
