"""Suites: what a file may say, what its arms become, and that every shipped one is sound."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pddpo_lab.compare.facts import FACTS
from pddpo_lab.compare.paper import ModelEntry, load_paper, missing_models, planned, scorers_of
from pddpo_lab.compare.runner import Unit, run_unit, units_of
from pddpo_lab.compare.suite import MethodsTable, SweepTable, load_suite, suite_names
from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import ModelFeedback, load, recipe_names
from pddpo_ray.driver.build import dual_state
from pddpo_ray.errors import UserError
from pddpo_ray.parts.held_limit import HeldLimit
from tests.support.method_modules import METHODS

SMALL = """
about: small
seeds: [3, 5]
seed_keys: [seed, world.seed]
set: [rounds=2, "world={kind: tabular, name: random}"]
arms:
  a: {label: A, recipe: tabular}
  b: {label: B, recipe: tabular, set: [algorithm=pd-dpo]}
variants:
  more: {arms: [b], set: [offline.extra=7]}
tables:
  - {kind: methods, key: all, title: All, arms: [a, b, b.more]}
  - {kind: sweep, key: limit, title: Limits, of: b, setting: limits.cost.at_most, at: [0.0, 0.5]}
dynamics: [a, b]
"""


def suite_file(folder: Path, text: str = SMALL) -> str:
    path = folder / "mine.yaml"
    path.write_text(text)
    return str(path)


def test_arms_variants_and_sweeps_become_recipes_with_the_seed_in_its_keys(tmp_path: Path) -> None:
    suite = load_suite(suite_file(tmp_path))
    assert list(suite.arms) == ["a", "b", "b.more", "b.limit-0", "b.limit-0.5"]
    config = suite.config("b.more", 5)
    assert (config.algorithm, config.offline.extra, config.rounds) == ("pd-dpo", 7, 2)
    assert (config.seed, config.world.seed) == (5, 5)  # type: ignore[union-attr]
    assert suite.config("b.limit-0.5", 3).thresholds == {"cost": 0.5}


def test_online_arms_are_units_of_their_own(tmp_path: Path) -> None:
    units = units_of(load_suite(suite_file(tmp_path)))
    assert [(unit.seed, unit.arms) for unit in units] == [
        (3, ("a",)),
        (5, ("a",)),
        (3, ("b", "b.more", "b.limit-0", "b.limit-0.5")),
        (5, ("b", "b.more", "b.limit-0", "b.limit-0.5")),
    ]


def test_only_keeps_some_arms_and_what_is_left_of_the_tables(tmp_path: Path) -> None:
    suite = load_suite(suite_file(tmp_path), seeds=[1], only=["b", "b.limit-0.5"], overrides=["rounds=4"])
    assert list(suite.arms) == ["b", "b.limit-0.5"]
    assert [list(table.arms) for table in suite.tables] == [["b"], ["b.limit-0.5"]]
    assert suite.seeds == (1,)
    assert suite.config("b", 1).rounds == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("arms: [b], set", "arms: [c], set", "variant more names the arm c"),
        ("arms: [a, b, b.more]", "arms: [a, b.less]", "table all names the arm b.less"),
        ("of: b,", "of: z,", "table limit names the arm z"),
        ("set: [offline.extra=7]", "pairs_of: y", "variant more names the arm y"),
        ("key: limit", "key: all", "two tables have the same key"),
        ("about: small", "abut: small", "about: Field required"),
        ("algorithm=pd-dpo", "algorithm=none-such", "none-such"),
        ("at: [0.0, 0.5]", "at: [0.5]", "at least 2 items"),
    ],
)
def test_a_suite_that_is_wrong_says_what_is_wrong(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_suite(suite_file(tmp_path, SMALL.replace(old, new)))


def test_a_suite_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(UserError, match=r"no suite `nothing`.*tabular"):
        load_suite("nothing")


def test_an_arm_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--only x: the suite has no such arm; it has a, b"):
        load_suite(suite_file(tmp_path), only=["x"])


@pytest.mark.slow
@pytest.mark.parametrize("name", suite_names())
def test_every_shipped_suite_loads_with_all_its_arms(name: str) -> None:
    """Loading a suite resolves the recipe of every arm."""
    suite = load_suite(name)
    last = list(suite.arms)[-1]
    assert suite.config(last, suite.seeds[-1]).seed == suite.seeds[-1]
    for table in suite.tables:
        assert set(table.arms) <= set(suite.arms)


@pytest.mark.slow
@pytest.mark.parametrize("name", suite_names())
def test_every_arm_of_a_shipped_suite_can_start_at_its_multiplier(name: str) -> None:
    """Without a world's oracle the bounds follow from `upper` or `rho`; 1 stands for one that the recipe leaves out."""
    suite = load_suite(name)
    for arm in suite.arms:
        config = suite.config(arm, suite.seeds[0])
        if config.dual.rho is None and config.dual.upper is None:
            config = config.model_copy(update={"dual": config.dual.model_copy(update={"rho": 1.0})})
        backends = cast(
            Backends, SimpleNamespace(world=None, held_limits=[HeldLimit(one, 1.0, {}) for one in config.stated])
        )
        [constraint] = dual_state(config, backends, config.rounds, {}).limits
        assert constraint.upper == (config.dual.upper or 2 * (config.dual.rho or 1.0))
        assert constraint.multiplier <= constraint.upper


@pytest.mark.slow
def test_an_arm_that_cannot_start_leaves_the_others_alone(tmp_path: Path) -> None:
    broken = SMALL.replace("algorithm=pd-dpo]", "algorithm=pd-dpo, dual.first=99.0]")
    suite = load_suite(suite_file(tmp_path, broken))
    rows = run_unit(suite, Unit(3, ("b", "a")), tmp_path / "runs", lambda line: None)
    assert "first multiplier 99.0 must be inside [0.0," in rows[0]["error"]
    assert rows[1]["result"]["rounds"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tabular", "text-world"])
def test_the_whole_suites_have_what_a_comparison_needs(name: str) -> None:
    """All methods, as published and at equal labels, thresholds, reward data, roles, N and M, three seeds."""
    suite = load_suite(name)
    by_key = {table.key: table for table in suite.tables}
    published, equal = by_key["published"], by_key["equal"]
    assert isinstance(published, MethodsTable)
    algorithms = {suite.config(arm, 0).algorithm for arm in published.arms}
    assert algorithms >= set(METHODS) - {"o-pd-dpo-paper", "safe-rlhf"}
    assert isinstance(equal, MethodsTable)
    online = suite.config("o-pd-dpo", 0)
    for arm in equal.arms:
        config = suite.config(arm, 0)
        assert config.online or config.offline.extra == online.rounds * online.pairs_per_round
    assert {"roles", "threshold", "responses", "labels-each"} <= set(by_key)
    shares = by_key["reward-share"]
    assert isinstance(shares, SweepTable)
    assert shares.at == [1.0, 0.1, 0.05, 0.01]
    assert len(suite.seeds) >= 3


def test_the_suite_of_refits_has_every_kind() -> None:
    suite = load_suite("refit")
    configs = [suite.config(arm, seed) for arm in suite.arms for seed in suite.seeds]
    assert {config.trainer.refit.kind for config in configs} == {"union", "budget", "geometric", "determinant"}
    assert {config.algorithm for config in configs} == {"o-pd-dpo"}


def test_the_suite_of_the_documentation_loads(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "comparison.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yml\n(.*?)^```", page, re.S | re.M)
    suite = load_suite(suite_file(tmp_path, text))
    assert list(suite.arms)[:3] == ["ours", "offline", "offline.equal"]
    equal, online = suite.config("offline.equal", 0), suite.config("ours", 0)
    assert equal.offline.extra == online.rounds * online.pairs_per_round


def test_every_page_has_its_line_in_the_table_of_methods() -> None:
    assert set(FACTS) >= set(METHODS)


# --- the paper's comparison ----------------------------------------------------------------------------------------


def test_the_papers_plan_has_its_models_evaluators_and_template() -> None:
    paper = load_paper()
    assert list(paper.models) == [
        "Alpaca-7B-reproduced", "Beaver-v3", "SACPO", "P-SACPO", "PD-DPO-1", "PD-DPO-2", "PD-DPO-3", "PD-DPO-4",
        "PD-DPO-adaLag", "DPO-Harmless", "SafeDPO", "PeCAN-3.2",
        *(f"PD-DPO-adaLag-{limit}" for limit in (1.4, 1.5, 1.6)),
        *(f"PD-DPO-3-share-{part}" for part in (0.1, 0.05, 0.01)),
    ]  # fmt: skip
    assert "beaver-7b-v1.0-reward" in paper.reward_model
    assert "beaver-7b-v1.0-cost" in paper.cost_model
    assert paper.template == "safe-rlhf"


@pytest.mark.slow
def test_ours_are_trained_by_commands_that_load() -> None:
    missing = missing_models(load_paper())
    assert [item.name for item in missing] == [
        *(f"PD-DPO-{price}" for price in (1, 2, 3, 4)), "PD-DPO-adaLag", "DPO-Harmless", "SafeDPO", "PeCAN-3.2",
        *(f"PD-DPO-adaLag-{limit}" for limit in (1.4, 1.5, 1.6)),
        *(f"PD-DPO-3-share-{part}" for part in (0.1, 0.05, 0.01)),
    ]  # fmt: skip
    for item in missing:
        words = shlex.split(item.command)
        config = load(words[2], words[3 : words.index("--run")], check_files=False)
        assert config.beta == 0.1
        assert config.world is None
        assert config.model.reference == "PKU-Alignment/alpaca-7b-reproduced"
        assert isinstance(config.feedback, ModelFeedback)
        assert config.feedback.cost is not None
        assert ("unified" in config.feedback.cost.path) == ("adaLag" in item.name)


def test_the_dry_run_has_a_row_for_every_model_of_each_figure_and_ablation() -> None:
    rows = planned(load_paper(["PD-DPO-2=runs/two", "mine=models/m"]))
    places = [place for place, _, _ in rows]
    assert {place: places.count(place) for place in dict.fromkeys(places)} == {
        "figure 1": 12, "figure 2": 12, "figure 3: its multiplier by step, in its report": 1,
        "share of reward pairs": 4, "threshold of adaLag": 4, "not in the paper": 1, "settings tables": 7,
    }  # fmt: skip
    assert ("figure 1", "PD-DPO-2", "runs/two") in rows
    (command,) = [told for place, name, told in rows if name == "PD-DPO-3-share-0.05"]
    words = shlex.split(command)
    assert load(words[2], words[3:6], check_files=False).offline.reward_share == 0.05
    settings = {told.split()[2] for place, _, told in rows if place == "settings tables"}
    assert settings <= {name for name in recipe_names() if name.startswith("paper/")}


def test_the_plans_judge_is_asked_on_both_axes_and_remembered_apart() -> None:
    asked = ["judge=http://127.0.0.1:9/v1", "judge_model=m"]
    without, with_one = scorers_of(load_paper()), scorers_of(load_paper(asked))
    assert [[axis for axis, _ in one.judges] for one in (without, with_one)] == [[], ["helpfulness", "harmlessness"]]
    assert without.fingerprint != with_one.fingerprint


def test_a_source_on_the_command_line_belongs_to_its_model_and_other_words_to_the_plan() -> None:
    paper = load_paper(["PD-DPO-2=runs/two", "mine=models/m", "questions=7", "sets=a.jsonl,b.csv", "dtype=float32"])
    assert paper.models["PD-DPO-2"].source == "runs/two"
    assert paper.models["mine"].source == "models/m"
    assert (paper.questions, paper.sets, paper.dtype) == (7, ["a.jsonl", "b.csv"], "float32")


def test_a_plan_of_version_0_1_calls_a_source_a_place() -> None:
    assert ModelEntry.model_validate({"place": "runs/two"}) == ModelEntry(source="runs/two")


@pytest.mark.parametrize("word", ["noequals", "=x", "a="])
def test_a_word_that_is_no_setting_is_refused(word: str) -> None:
    with pytest.raises(UserError, match="NAME=SOURCE"):
        load_paper([word])
