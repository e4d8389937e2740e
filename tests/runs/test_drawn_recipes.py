"""Drawn recipes: what is accepted runs two small rounds, and what cannot is refused at once, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import run_recipe
from pddpo_ray.errors import ParkedError, UserError
from pddpo_ray.plan.warnings import demand_possible_sizes
from tests.support.drawn_recipes import drawn_recipe
from tests.unit.loop.small_run import small

pytestmark = pytest.mark.run


def accepted(number: int, folder: Path) -> Config | None:
    """The drawn recipe as the command line reads it; None where it is refused, which is said in one line."""
    file = folder / "drawn.yaml"
    file.write_text(yaml.safe_dump(drawn_recipe(number)))
    try:
        config = load(str(file))
        demand_possible_sizes(config)
    except UserError as error:
        refused = str(error)
    else:
        return config
    assert "\n" not in refused
    return None


def ran(number: int, folder: Path) -> bool:
    """Whether the drawn recipe ran to its end, or until it waited for people. What its world cannot give is refused
    before anything of it is kept; whatever else goes wrong is a failure of the test."""
    config, run = accepted(number, folder), folder / "run"
    if config is None:
        return False
    try:
        run_recipe(config, run)
    except ParkedError:
        assert config.people_each > 0
    except UserError:
        if run.exists():
            raise
        return False
    return True


@pytest.mark.parametrize("number", [*range(10), 302])  # 302: offline PD-DPO beside a run whose model people audit
def test_a_drawn_recipe_is_refused_or_runs(number: int, tmp_path: Path) -> None:
    ran(number, tmp_path)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(5))
def test_of_500_drawn_recipes_none_is_accepted_that_fails(hundred: int, tmp_path: Path) -> None:
    done = []
    for number in range(100 * hundred, 100 * (hundred + 1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        done.append(ran(number, folder))
    assert sum(done) > 30, "drawn recipes that are nearly all refused show nothing"


def test_what_a_world_cannot_give_is_refused_before_anything_is_kept(tmp_path: Path) -> None:
    """The multiplier's upper end is twice what this world's oracle states; limits on the drift have no group either."""
    for said, overrides in {
        "first multiplier 0.7 must be inside": ["dual.first=0.7"],
        "no prompt that certificates draw is in 'private'": ["certificate.gate=[private]"],
        "a kl limit is never certified": [
            "limits={cost: null, far: {kl: reference, at_most: 2}}",
            "dual.margin=certificate",
        ],
    }.items():
        with pytest.raises(UserError, match=said):
            run_recipe(small(*overrides), tmp_path / "run")
        assert not (tmp_path / "run").exists()
