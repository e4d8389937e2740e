"""A run with `explore.information: fitted` takes its design matrices from the journal, and refuses what has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.config import load
from pddpo_ray.driver.run import PhaseChanged, run_recipe
from pddpo_ray.errors import UserError
from tests.unit.loop.small_run import small, story


class PowerCut(BaseException):
    """Not an Exception: nothing on the way may catch it and tidy up."""


@pytest.mark.run
def test_a_run_with_fitted_information_that_breaks_off_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    def cut(event: Any) -> None:
        if isinstance(event, PhaseChanged) and (event.event.round, event.event.phase) == (3, "fit-reward"):
            raise PowerCut

    recipe = small("explore.information=fitted", rounds=3)
    with pytest.raises(PowerCut):
        run_recipe(recipe, tmp_path / "cut" / "run", progress=cut)
    run_recipe(recipe, tmp_path / "cut" / "run", resume=True)
    run_recipe(recipe, tmp_path / "whole" / "run")
    whole = story(tmp_path / "whole" / "run")
    assert story(tmp_path / "cut" / "run") == whole
    run_recipe(small(rounds=3), tmp_path / "quarter" / "run")
    quarter = story(tmp_path / "quarter" / "run")

    def learned(told: dict[str, Any]) -> list[float]:
        return [row["explore/logdet"] for row in told["exact"] if "explore/logdet" in row]

    assert len(learned(whole)) == 3
    assert all(fitted < most for fitted, most in zip(learned(whole), learned(quarter), strict=True))


@pytest.mark.parametrize(
    ("recipe", "override"),
    [("tabular", "explore.bonus=simhash"), ("tabular", "explore.bonus=theorem"), ("tabular-limits", "rounds=2"),
     ("tabular", "algorithm=o-pd-dpo-paper")],
)  # fmt: skip
def test_fitted_information_is_refused_where_there_is_none(recipe: str, override: str) -> None:
    with pytest.raises(UserError, match="information=fitted"):
        load(recipe, [override, "explore.information=fitted"])
