"""What `pddpo explain` and docs/settings.md say about the keys of a recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pddpo_ray.cli.main import main
from pddpo_ray.config.explaining import every_key, explained, keys_of_section, settings_page
from pddpo_ray.config.loading import dotted_keys
from pddpo_ray.errors import UserError

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_page_is_that_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page(), "pddpo explain --page > docs/settings.md"


def test_every_key_that_a_recipe_may_set_is_explained() -> None:
    every = {one.key for one in every_key()}
    trackers = {key for key in every if key.startswith("report.trackers.")}
    assert every - trackers == set(dotted_keys())
    assert trackers >= {"report.trackers.wandb.project", "report.trackers.mlflow.uri"}
    silent = [one.key for one in every_key() if not one.about and one.takes != "a section"]
    assert silent == []


def test_a_key_says_what_it_takes_and_its_default() -> None:
    (beta,) = explained("beta")
    assert (beta.takes, beta.default) == ("number, > 0", "0.1")
    (damping,) = explained("dual.rule.damping")
    assert (damping.variant, damping.takes) == ("kind: newton", "number, > 0 and ≤ 1")
    kinds = {one.variant for one in explained("feedback.kind")}
    assert {"kind: world", "kind: people", "kind: model", "kind: judge"} <= kinds
    assert "algorithm" in {one.key for one in every_key()}
    assert next(iter(explained("rounds"))).default == "16"


def test_a_section_lists_its_keys_alone() -> None:
    keys = [one.key for one in keys_of_section("dual")]
    assert {"dual.cost_max", "dual.rule"} <= set(keys)
    assert all(key.count(".") == 1 for key in keys)


def test_a_wrong_key_names_near_ones() -> None:
    with pytest.raises(UserError, match=r"there is no key `damping`; did you mean dual\.rule\.damping"):
        explained("damping")
    with pytest.raises(UserError, match=r"did you mean .*explore\.picks"):
        explained("explore.pick")


def test_the_terminal_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "dual"])
    said = capsys.readouterr().out
    assert not ended.value.code
    assert "cost_max" in said
    assert "costs lie in [-C, C]" in said
    with pytest.raises(SystemExit):
        main(["explain", "explore.picks", "--json"])
    assert json.loads(capsys.readouterr().out)["keys"][0]["default"] == "6"
