"""A run by Newton's dual steps that breaks off goes on with the multipliers of the unbroken one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.driver.run import PhaseChanged, run_recipe
from tests.unit.loop.small_run import small, story


class PowerCut(BaseException):
    """Not an Exception: nothing on the way may catch it and tidy up."""


@pytest.mark.run
def test_newton_steps_are_the_same_after_a_restart(tmp_path: Path) -> None:
    """Their curvature is the variance within prompts, which the journal has to remember."""

    def cut(event: Any) -> None:
        if isinstance(event, PhaseChanged) and (event.event.round, event.event.phase) == (3, "fit-reward"):
            raise PowerCut

    recipe = small("dual.rule={kind: newton, damping: 0.5}", "feedback.responses=24", rounds=3)
    with pytest.raises(PowerCut):
        run_recipe(recipe, tmp_path / "cut" / "run", progress=cut)
    run_recipe(recipe, tmp_path / "cut" / "run", resume=True)
    run_recipe(recipe, tmp_path / "whole" / "run")
    assert story(tmp_path / "cut" / "run") == story(tmp_path / "whole" / "run")
