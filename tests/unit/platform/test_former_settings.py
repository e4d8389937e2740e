"""Settings of earlier versions: refused with what to write, and read in the journals of older runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from pddpo_ray.config import Config, MixedFeedback, StoredScorerConfig, load
from pddpo_ray.config.explaining import every_key
from pddpo_ray.config.former.settings import FIXED, MOVED, fixed_otherwise, in_todays_keys
from pddpo_ray.config.sections.trainer import Stage
from pddpo_ray.errors import UserError


@pytest.mark.parametrize("key", FIXED)
def test_a_setting_that_is_fixed_is_refused_with_its_value(key: str) -> None:
    with pytest.raises(UserError, match=r"is no setting: it is fixed at .+; leave it out") as refused:
        load("real-text", [f"{key}=7"])
    assert f"override `{key}=7`: `{key}`" in str(refused.value)


@pytest.mark.parametrize("key", MOVED)
def test_a_setting_that_moved_is_refused_with_the_line_to_write(key: str) -> None:
    with pytest.raises(UserError, match="is no setting: write ") as refused:
        load("text-world-people", [f"{key}=7"])
    line = str(refused.value).partition("is no setting: write ")[2]
    assert line == f"{MOVED[key]}=7"
    assert MOVED[key].removesuffix(f".{key.rpartition('.')[2]}") in keys_with_sections()


def keys_with_sections() -> set[str]:
    every = {one.key for one in every_key()}
    return every | {key.rpartition(".")[0] for key in every}


def test_no_former_setting_is_one_today() -> None:
    assert not {*FIXED, *MOVED} & {one.key for one in every_key()}


def test_a_deadline_of_labels_by_a_world_is_that_of_the_answers() -> None:
    with pytest.raises(UserError, match=r"write rollout\.deadline_s=7"):
        load("text-world", ["feedback.deadline_s=7"])


def test_the_recipe_of_an_older_run_is_read_with_its_values_where_they_stand_today() -> None:
    recipe = load("text-world-people").model_dump(mode="json")
    people = recipe.pop("people")
    older: dict[str, Any] = {**recipe, "feedback": {**recipe["feedback"], **people, "lease_s": 60.0, "poll_s": 1.0}}
    older["trainer"] = {**recipe["trainer"], "support": {"weight": 1.5, "floor": 0.001}, "merge_duplicates": False}
    config = Config.of_run(older)
    assert (config.people.lease_s, config.trainer.support) == (60.0, 1.5)


def test_what_an_older_run_had_set_otherwise_is_named() -> None:
    assert fixed_otherwise({"explore": {"min_ess": 1.5}}) is None
    assert fixed_otherwise({"explore": {"min_ess": 4.0}}) == "explore.min_ess is 4.0 there and fixed at 1.5 here"
    assert in_todays_keys({"explore": {"min_ess": 4.0, "rank": 8}}) == {"explore": {"rank": 8}}


def test_a_judge_under_feedback_is_refused_with_the_whole_section_to_write(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"write judge\.endpoint=http://there/v1 judge\.model=m"):
        load("o-pd-dpo", ["feedback={kind: judge, model: m, endpoint: 'http://there/v1'}"])
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("extends: o-pd-dpo\nfeedback: {kind: judge, model: m, tries: 2}\n")
    with pytest.raises(UserError, match=r"write judge: \{tries: 2, model: m\}"):
        load(str(recipe))


def test_the_scores_of_an_older_run_are_named_beside_its_kind() -> None:
    older = load("text-world", ["feedback={kind: mixed}"]).model_dump(mode="json")
    scorer = {"path": "models/reward", "batch": None, "max_tokens": None}
    older["feedback"] |= {"model": {"kind": "scorers", "reward": scorer, "cost": None}, "unsure": 8, "random": 16}
    older["limits"] = {"cost": {"rate": {"mixed": "cost"}, "at_most": "50 %", "learned_from": "comparisons"}}
    config = Config.of_run(older)
    feedback, (limit,) = config.feedback, config.stated
    assert (limit.source.kind, limit.audited, limit.unsure) == ("model", 24, 8)
    assert isinstance(feedback, MixedFeedback)
    assert (feedback.model, feedback.cost) == ("scorers", None)
    assert feedback.reward == StoredScorerConfig(path="models/reward")


def test_fits_of_stages_are_refused_with_the_lines_to_write(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"write trainer\.stages\.cost\.steps=3 trainer\.stages\.first_cost\.epochs=2"):
        load("tabular", ["trainer.cost.steps=3", "trainer.first_cost={epochs: 2, steps: null}"])
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("extends: text-world\noffline: {compare_cost: {steps: 4}}\n")
    with pytest.raises(UserError, match=r"line 2: .*write trainer: \{stages: \{compare_cost: \{steps: 4\}\}\}"):
        load(str(recipe))


def test_fits_of_an_older_run_are_the_same_fits() -> None:
    older = load("paper/pd-dpo-adalag").model_dump(mode="json")
    of_stage = load("paper/pd-dpo-adalag").trainer.of_stage
    stages = {stage: of_stage(stage).model_dump() for stage in get_args(Stage)}
    assert stages["first_cost"]["epochs"] == 3.0, "steps stood beside it and did not count"
    trainer = {key: value for key, value in older["trainer"].items() if key not in ("fit", "stages")}
    older["trainer"] = trainer | {key: stages[key] for key in ("reward", "cost", "first_reward", "first_cost")}
    older["offline"] |= {key: stages[key] for key in ("compare_reward", "compare_cost")}
    config = Config.of_run(older)
    for stage in get_args(Stage):
        found, before = config.trainer.of_stage(stage), of_stage(stage)
        assert found.model_copy(update={"steps": 0}) == before.model_copy(update={"steps": 0})
        assert before.epochs or found.steps == before.steps
    assert in_todays_keys({"offline": {"compare_reward": None}}) == {"offline": {}}


def test_settings_of_policy_gradients_are_refused_with_those_of_the_method_beside_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"`ppo` is no setting: write method\.kl=0\.2"):
        load("safe-rlhf", ["ppo.kl=0.2"])
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("extends: safe-rlhf\nmethod: {window: 32}\nppo: {kl: 0.2, batch: 6}\n")
    with pytest.raises(UserError, match=r"line 3: .*write method: \{window: 32, kl: 0\.2, epochs: 2, batch: 6, "):
        load(str(recipe))


ALL_METHODS = {"group": 4, "margin": 10.0, "share": 0.5, "window": 64, "answers": 128, "rate": 1.0, "multiplier": None}
"""What the recipe of every run had, whatever its method."""


@pytest.mark.parametrize(
    ("algorithm", "own"),
    [("o-pd-dpo", {}), ("pd-dpo-adalag", {"window": 64}), ("c-grpo", {"window": 64, "group": 4, "kl": 0.3})],
)
def test_a_run_of_an_earlier_version_keeps_the_settings_of_its_own_method(algorithm: str, own: dict[str, Any]) -> None:
    recipe = {"pd-dpo-adalag": algorithm, "c-grpo": algorithm}.get(algorithm, "text-world")
    older = load(recipe).model_dump(mode="json")
    older |= {"method": {**ALL_METHODS, "settings": {}, "scores": "models"}, "ppo": {"kl": 0.3}}
    method = Config.of_run(older).method
    assert {key: method[key] for key in own} == own
    assert set(method) == set(load(recipe).method)


def test_a_setting_of_another_method_is_refused() -> None:
    """It was read and had no effect before."""
    with pytest.raises(UserError, match=r"method: method o-pd-dpo has no settings; leave out window"):
        load("text-world", ["method.window=64"])
    with pytest.raises(UserError, match=r"unknown key `method\.window`; known are answers, multiplier"):
        load("mocan", ["method.window=64"])


def test_another_algorithm_keeps_the_settings_that_it_has_too() -> None:
    assert load("c-grpo").method["window"] == load("safe-rlhf").method["window"] == 288
    assert load("caid", ["algorithm=mocan", "rounds=1"]).method == {"answers": 128, "multiplier": None}
    assert load("pd-dpo-adalag", ["algorithm=o-pd-dpo"]).method == {}
