"""A newcomer follows one pair to its loss, and one answer to the multiplier, through few files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pddpo_ray.contracts import FitSettings
from pddpo_ray.records import PairRow, PolicyVersion
from tools.pair_trace import LOSS, METHOD, SAMPLING, STEP, TABLES, carries, way, way_of_an_answer


def test_what_holds_a_pair_is_told_from_settings_and_names() -> None:
    row = PairRow("a", (1, 2, 3), (4, 5), (6, 7))
    assert carries([row])
    assert carries({(1, 2, 3): 0.5})
    assert carries((4, 5, 6))
    assert not carries(FitSettings())
    assert not carries(PolicyVersion(1, "policy-1", "0" * 64, "policy-1-0"))


@pytest.mark.slow
def test_a_pair_passes_at_most_fifteen_files_from_the_method_to_its_loss(tmp_path: Path) -> None:
    files = list(way(tmp_path / "run").held)
    assert (files[0], LOSS[0] in files) == (METHOD, True)
    assert len(files) <= 15, files


@pytest.mark.run
@pytest.mark.parametrize("recipe", TABLES)
def test_an_answer_passes_at_most_seven_files_from_its_draw_to_the_step_of_the_multiplier(
    recipe: str, tmp_path: Path
) -> None:
    files = list(way_of_an_answer(recipe, tmp_path / "run").held)
    assert (files[0], STEP[0] in files) == (SAMPLING, True)
    assert len(files) <= 7, files
