"""Recipes, overrides, and what is said about mistakes in them."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from pddpo_ray.backends.machine import GIB, Machine
from pddpo_ray.config import (
    Config,
    FixedRule,
    LogRule,
    RayCluster,
    TabularWorldConfig,
    TransformersRollout,
    load,
    recipe_names,
    to_yaml,
)
from pddpo_ray.config.document import parse_value
from pddpo_ray.config.explaining import every_key
from pddpo_ray.errors import UserError
from pddpo_ray.plan.warnings import warnings
from pddpo_ray.storage.checkpoints import checkpoint_problem


def complaint(recipe: str | Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load(str(recipe), overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# --- recipes ---------------------------------------------------------------------------------------------------------


def test_the_recipes_of_this_release_ship_with_the_package() -> None:
    assert {"text-world", "tabular", "o-pd-dpo", "o-pd-dpo-paper", "pd-dpo", "pd-dpo-fixed"} <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_loads_and_survives_a_round_trip(name: str, tmp_path: Path) -> None:
    config = load(name, check_files=False)
    assert config.about
    assert load(str(write(tmp_path / "copy.yaml", to_yaml(config))), check_files=False) == config


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_explains_itself_in_a_comment(name: str) -> None:
    root = Path(__file__).parents[3]
    files = [root / room / "recipes" / f"{name}.yaml" for room in ("pddpo_ray", "lab/pddpo_lab")]
    (path,) = filter(Path.exists, files)
    assert path.read_text(encoding="utf-8").startswith("# ")


def test_recipes_of_one_world_differ_only_in_what_they_say() -> None:
    demo, paper = load("text-world"), load("o-pd-dpo-paper")
    assert paper.algorithm == "o-pd-dpo-paper"
    assert paper.trainer == demo.trainer
    assert paper.explore == demo.explore


def test_every_setting_is_explained_underneath() -> None:
    unexplained: list[str] = []

    def visit(model: type[BaseModel]) -> None:
        for key, field in model.model_fields.items():
            section = any(isinstance(kind, type) and issubclass(kind, BaseModel) for kind in _kinds(field.annotation))
            if not section and not field.description:
                unexplained.append(f"{model.__name__}.{key}")
            for kind in _kinds(field.annotation):
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    assert kind.__doc__, kind
                    visit(kind)

    visit(Config)
    assert unexplained == []


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return getattr(annotation, "__args__", None) or (annotation,)


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        load("tabular").rounds = 3  # type: ignore[misc]


def test_pairs_per_round_follow_from_prompts_and_picks() -> None:
    assert load("o-pd-dpo", ["explore.prompts=5", "explore.picks=3"]).pairs_per_round == 15
    assert load("pd-dpo", ["explore.prompts=5", "explore.picks=3"]).pairs_per_round == 0


def test_the_cost_fit_is_skipped_below_a_tenth_of_beta_unless_said_otherwise() -> None:
    assert load("tabular").skip_below == pytest.approx(0.01)
    assert load("tabular", ["dual.skip_below=0.3"]).skip_below == 0.3


# --- the digest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override", ["cluster.mode=in-process", "report.html=false", "trainer.deadline_s=5.0", "certificate.draws=9"]
)
def test_the_digest_does_not_depend_on_where_a_run_happens(override: str) -> None:
    assert load("text-world", [override]).digest() == load("text-world").digest()


@pytest.mark.parametrize("override", ["seed=91", "beta=0.17", "dual.rule.kind=log", "certificate.shares=[1.0]"])
def test_the_digest_depends_on_everything_that_decides_numbers(override: str) -> None:
    assert load("text-world", [override]).digest() != load("text-world").digest()


# --- overrides and layers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("010", 10),
        ("1e-4", 1e-4),
        (".5", 0.5),
        ("-2.5E+3", -2500.0),
        ("true", True),
        ("off", "off"),
        ("no", "no"),
        ("null", None),
        ("1:30", "1:30"),
        ("2026-11-21", "2026-11-21"),
        ("[1, 2]", [1, 2]),
        ("{kind: newton}", {"kind": "newton"}),
        ('"3"', "3"),
    ],
)
def test_values_are_read_as_yaml_1_2(text: str, value: object) -> None:
    parsed = parse_value(text, "override")
    assert parsed == value
    assert type(parsed) is type(value)


@given(st.floats(-1e18, 1e18, exclude_min=True, exclude_max=True))
@settings(max_examples=200)
def test_every_number_that_python_prints_is_read_back_as_that_number(number: float) -> None:
    assert parse_value(repr(number), "override") == number


def test_overrides_reach_any_depth_and_later_ones_win() -> None:
    config = load("text-world", ["trainer.stages.reward.steps=7", "rounds=3", "trainer.stages.reward.steps=9"])
    assert config.trainer.of_stage("reward").steps == 9
    assert config.rounds == 3
    shipped = load("text-world").trainer.of_stage("reward")
    assert config.trainer.of_stage("reward").learning_rate == shipped.learning_rate


def test_choosing_another_variant_keeps_only_what_both_share() -> None:
    config = load("text-world", ["rollout.threads=2", "rollout.engine=transformers", "rollout.candidates=4"])
    assert isinstance(config.rollout, TransformersRollout)
    assert config.rollout.candidates == 4
    assert config.rollout.max_tokens == load("text-world").rollout.max_tokens
    assert isinstance(load("pd-dpo-fixed").dual.rule, FixedRule)


def test_a_whole_section_can_be_given_at_once() -> None:
    config = load("text-world", ["dual.rule={kind: log, floor: 0.1}", "cluster={mode: ray, cpus: 3}"])
    assert config.dual.rule == LogRule(floor=0.1)
    assert config.cluster == RayCluster(cpus=3)


def test_a_section_without_its_tag_means_the_default_variant(tmp_path: Path) -> None:
    sections = ("algorithm: pd-dpo", "world: {kind: text}", "dual: {rule: {curvature_cap: false}}")
    path = write(tmp_path / "r.yaml", "\n".join((*sections, "model: {parameters: {kind: lora}}")))
    config = load(str(path))
    assert config.dual.rule.kind == "projected"
    assert config.model.parameters.kind == "lora"


def test_steps_of_an_override_count_in_place_of_the_recipes_epochs_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    assert load("paper/pd-dpo").trainer.of_stage("reward").epochs == 3.0
    with caplog.at_level(logging.WARNING, logger="pddpo_ray"):
        config = load("paper/pd-dpo", ["trainer.stages.reward.steps=5", "scorers.fit.steps=7"])
    assert (config.trainer.of_stage("reward").steps, config.trainer.of_stage("reward").epochs) == (5, None)
    assert config.trainer.of_stage("cost").epochs == 3.0
    assert [record.getMessage() for record in caplog.records] == [
        "override `trainer.stages.reward.steps=5`: trainer.stages.reward runs 5 steps, not the recipe's epochs (3.0)"
    ]


def test_the_last_of_steps_and_epochs_counts_and_both_at_once_are_refused(tmp_path: Path) -> None:
    own = write(tmp_path / "own.yaml", "extends: paper/pd-dpo\ntrainer: {stages: {cost: {steps: 9}}}\n")
    assert (load(str(own)).trainer.of_stage("cost").steps, load(str(own)).trainer.of_stage("cost").epochs) == (9, None)
    assert load(str(own), ["trainer.stages.cost.epochs=2"]).trainer.of_stage("cost").epochs == 2.0
    with pytest.raises(UserError, match=r"trainer\.stages\.cost has both steps \(4\) and epochs \(2\); give one"):
        load("tabular", ["trainer.stages.cost.epochs=2", "trainer.stages.cost.steps=4"])
    epochs = load("paper/pd-dpo", ["trainer.stages.cost.epochs=null", "trainer.stages.cost.steps=4"])
    assert (epochs.trainer.of_stage("cost").steps, epochs.trainer.of_stage("cost").epochs) == (4, None)
    stored = write(tmp_path / "stored.yaml", to_yaml(load("paper/pd-dpo")))
    assert load(str(stored)) == load("paper/pd-dpo")


def test_a_recipe_extends_several_of_which_later_ones_win(tmp_path: Path) -> None:
    write(tmp_path / "small.yaml", "rounds: 2\nbeta: 0.3\n")
    child = write(tmp_path / "child.yaml", "extends: [tabular, small.yaml]\nbeta: 0.2\n")
    merged, base = load(str(child)), load("tabular")
    assert (merged.rounds, merged.beta, merged.world) == (2, 0.2, base.world)
    ours = load("gpu/sacpo-4", check_files=False)
    assert (ours.trainer.workers, ours.rollout.engines) == (4, 4)
    assert ours.trainer.of_stage("first_cost") == load("paper/sacpo").trainer.of_stage("first_cost")
    write(tmp_path / "child.yaml", "extends: [tabular, {}]\n")
    assert "or a list of recipes and layers" in complaint(child)


def test_a_recipe_extends_a_file_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", "extends: tabular\nrounds: 5\nbeta: 0.3\n")
    child = write(tmp_path / "child.yaml", "extends: base.yaml\nrounds: 6\n")
    config = load(str(child))
    assert (config.rounds, config.beta, type(config.world)) == (6, 0.3, TabularWorldConfig)


def test_paths_in_a_recipe_are_relative_to_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    write(tmp_path / "inner" / "world.json", "{}")
    recipe = write(tmp_path / "inner" / "r.yaml", "extends: tabular\nworld: {path: world.json}\n")
    monkeypatch.chdir(tmp_path)
    assert load(str(recipe)).model_dump()["world"]["path"] == str(tmp_path / "inner" / "world.json")
    assert load("tabular", ["world.path=inner/world.json"]).world == load(str(recipe)).world


def test_files_of_real_text_lie_beside_the_recipe_and_data_sets_of_the_hub_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pairs.jsonl", "asked.jsonl", "fresh.jsonl"):
        (tmp_path / name).write_text("{}\n")
    data = "data: {helpful: [pairs.jsonl, 'hf:org/name'], prompts: [asked.jsonl]}"
    lines = ["about: beside", "extends: real-text", data, "certificate: {prompts: [fresh.jsonl]}"]
    (tmp_path / "recipe.yaml").write_text("\n".join(lines))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    config = load(str(tmp_path / "recipe.yaml"))
    assert config.data is not None
    assert config.data.helpful == [str(tmp_path / "pairs.jsonl"), "hf:org/name"]
    assert config.data.prompts == [str(tmp_path / "asked.jsonl")]
    assert config.certificate.prompts == [str(tmp_path / "fresh.jsonl")]


def test_a_world_file_states_its_own_problem_and_overrides_have_the_last_word(tmp_path: Path) -> None:
    world = {"beta": 0.3, "reward_max": 1, "cost_max": 3.0, "threshold": -0.5, "offline": {"pairs": 12}}
    path = write(tmp_path / "w.json", json.dumps(world))
    config = load("tabular", [f"world.path={path}", "limits.cost.at_most=0.25"])
    assert (config.beta, config.reward_max, config.dual.cost_max, config.offline.pairs) == (0.3, 1.0, 3.0, 12)
    assert config.thresholds["cost"] == 0.25


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_an_unknown_key_in_a_file_is_refused_with_line_and_nearest_name(tmp_path: Path) -> None:
    path = write(tmp_path / "r.yaml", "extends: text-world\n\ntrainer:\n  fit:\n    lerning_rate: 1e-4\n")
    text = complaint(path)
    assert text.startswith(f"{path} line 5: unknown key `trainer.fit.lerning_rate`")
    assert "did you mean `trainer.fit.learning_rate`?" in text


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("beat=1", "did you mean `beta`?"),
        ("train.lr=1", "did you mean `trainer`?"),
        ("trainer.fit.stpes=3", "did you mean `trainer.fit.steps`?"),
        ("dual.cost_mx=1", "did you mean `dual.cost_max`?"),
        ("world.path=x", "belongs to another variant of `world`, `kind: tabular`"),
        ("model.parameters.quantise=nf4", "belongs to another variant of `model.parameters`, `kind: lora`"),
        ("cluster.xyzzy=1", "this section has mode, address, cpus"),
    ],
)
def test_an_unknown_key_in_an_override_is_refused_with_the_nearest_name(override: str, expected: str) -> None:
    text = complaint("text-world", override)
    assert text.startswith(f"override `{override}`: unknown key `")
    assert expected in text


def test_a_base_of_four_bits_needs_plain_torch_and_its_library_before_a_run_and_not_for_a_dry_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    narrow = "model.parameters={kind: lora, quantise: nf4}"
    assert "needs trainer.engine=torch" in complaint("text-world", narrow, "trainer.engine=zero1")
    monkeypatch.setattr("pddpo_ray.config.file_checks.find_spec", lambda name: None)
    assert complaint("text-world", narrow).endswith("not installed; in a checkout: pip install '.[qlora]'")
    config = load("text-world", [narrow], check_scorers=False)
    said = warnings(config, Machine(cpus=8, memory_bytes=64 * GIB))
    assert [one for one in said if one.startswith("before the run: model.parameters.quantise=nf4: this needs bits")]


def test_moments_are_carried_by_torch_alone() -> None:
    carried = "trainer.moments=carried"
    assert load("text-world", [carried]).trainer.moments == "carried"
    assert "needs trainer.engine=torch; else write" in complaint("text-world", carried, "trainer.engine=zero2")


OF_USERS_NAMES = ("prompts.", "scorecard.scorers.", "method.", "report.trackers.")
"""Beginnings of keys below names that are the user's, or of one method or tracker."""


@pytest.mark.slow
@given(st.sampled_from(sorted({one.key for one in every_key() if not one.key.startswith(OF_USERS_NAMES)})))
@settings(max_examples=60)
def test_a_misspelt_key_is_never_a_default(key: str) -> None:
    assert "unknown key" in complaint("text-world", f"{key}q=1") or key == "about"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rounds=ten", "`rounds` is 'ten', but must be a valid integer"),
        ("rounds=true", "`rounds` is True, but must be a valid integer"),
        ("rounds=0", "`rounds` is 0, but must be greater than or equal to 1"),
        ("beta='0.1'", "`beta` is '0.1', but must be a valid number"),
        ("rollout=3", "`rollout` is a section"),
        ("rollout.engine=sglang", "must be one of vllm, transformers, tabular"),
        ("algorithm=ppo", "there is no method `ppo`; did you mean `pd-dpo`?"),
        ("explore.bonus=eliptical", "there is no bonus `eliptical`; did you mean `elliptical`?"),
        (
            "dual.rule.kind=newtin",
            "must be one of projected, anytime, newton, log, stepwise, fixed; did you mean `newton`?",
        ),
        ("report.trackers.wandbb={}", "there is no tracker `wandbb`; did you mean `wandb`?"),
        ("report.trackers.wandb.projct=a", "unknown key `report.trackers.wandb.projct`; did you mean `project`?"),
        ("explore.settings.width=2", "explore.settings: bonus elliptical has no settings; leave out width"),
        ("rounds", "write overrides as key=value"),
        ("=3", "write overrides as key=value"),
        ("dual.rule={kind: [", "not valid YAML"),
        ("limits.cost.at_most=1e400", "1e400 has more than 18 digits before the point"),
        ("dual.cost_max=1e308", "1e308 has more than 18 digits before the point"),
        ("seed=-99999999999999999999", "has more than 18 digits before the point"),
        ("limits.cost.at_most=.inf", "limits.cost.at_most: `.inf` is no number"),
        ("limits.cost.at_most=nan", "limits.cost.at_most: `nan` is no number"),
        ("limits={a: {mean: {rule: words}, at_most: 1e18}}", "1e18 has more than 18 digits before the point"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(override: str, expected: str) -> None:
    text = complaint("text-world", override)
    assert text.startswith(f"override `{override}`")
    assert expected in text


def test_a_first_multiplier_beyond_its_upper_end_is_refused() -> None:
    assert "outside the multiplier's bounds" in complaint("text-world", "dual.first=3", "dual.rho=1", "dual.upper=null")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["world.kind=tabular"], "needs rollout.engine tabular"),
        (["cluster.mode=in-process", "trainer.workers=2"], "trainer.workers=2 needs cluster.mode=ray"),
        (["cluster.mode=in-process", "trainer.engine=zero2"], "trainer.engine=zero2 needs cluster.mode=ray"),
        (["cluster.mode=in-process", "rollout.engines=2"], "rollout.engines=2 needs cluster.mode=ray"),
        (["algorithm=pd-dpo-fixed"], "needs dual.rule.kind=fixed"),
        (["dual.rule.kind=fixed", "dual.first=null"], "needs dual.first"),
        (
            ["limits.cost={rate: {world: cost}, learned_from: comparisons}", "limits.cost.at_most=0.0"],
            "limits.cost.at_most: a rate that comparisons teach lies between 0 and 100 %",
        ),
        (["rollout.proposal_temperature=1.1", "explore.weights=exact"], "or choose explore.weights=bonus_only"),
        (["rollout.max_tokens=300", "rollout.max_model_len=300"], "must be below rollout.max_model_len"),
        (["certificate.shares=[0.7, 0.6]"], "sum to at most 1"),
        (["certificate.scope=population"], "a world's prompts are all there are"),
        (["offline.pairs=0"], "offline.pairs=0: the first policy of algorithm o-pd-dpo learns from them"),
        (["dual.first=0", "dual.rule={kind: projected}"], "dual.first=0: the step of dual.rule.kind=projected grows"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(overrides: list[str], expected: str) -> None:
    assert expected in complaint("text-world", *overrides)


def test_a_logit_of_a_text_world_is_about_the_cost_that_its_comparisons_are_by() -> None:
    said = complaint("text-world-limits-twin", "limits={other: {logit: {world: cost-2}, at_most: 0, labels_each: 4}}")
    assert "limits.other: comparisons of a text world are by its cost `cost` alone" in said
    assert "{rate: {world: cost-2}}, which is learned from values" in said


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["feedback={kind: mixed, model: scorers}"], "feedback.kind=mixed reads texts; a table has none"),
        (["limits={polite: {rate: {rule: refusal}, at_most: 5 %}, cost: null}"], "rule refusal reads texts"),
    ],
)
def test_what_reads_texts_is_refused_on_a_table(overrides: list[str], expected: str) -> None:
    assert expected in complaint("tabular", *overrides)


def test_a_missing_recipe_names_the_nearest_one(tmp_path: Path) -> None:
    assert "did you mean `text-world`?" in complaint("text-wolrd")
    assert "no such recipe file" in complaint(tmp_path / "none.yaml")


def test_a_number_of_thousands_of_digits_is_refused_in_a_short_line(tmp_path: Path) -> None:
    digits = "9" * 5000
    for said in (
        complaint("text-world", f"rounds={digits}"),
        complaint(write(tmp_path / "a.yaml", f"rounds: {digits}\n")),
    ):
        assert "99999999999999999999… (5000 characters) has more than 18 digits" in said
        assert len(said) < 300
    assert "line 1" in said


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("{mean: {rule: words}, at_most: '" + "9" * 400 + " words'}", "no measure reaches inf; give a smaller number"),
        ("{rate: {rule: refusal}, at_most: '" + "9" * 400 + " %'}", "no measure reaches inf"),
        ("{logit: {world: cost}, at_most: 1e17, labels_each: 8}", "a logit of 1e+17 is a certainty"),
        ("{logit: {world: cost}, at_most: -37, labels_each: 8}", "a limit lies between -36 and 36"),
    ],
)
def test_a_limit_that_nothing_reaches_is_refused(limit: str, expected: str) -> None:
    assert expected in complaint("text-world-limits-twin", "limits={a: " + limit + "}")


def test_broken_files_are_refused_with_the_line(tmp_path: Path) -> None:
    assert "line 2: not valid YAML" in complaint(write(tmp_path / "a.yaml", "rounds: 3\nseed: [1]]\n"))
    assert "a recipe is a mapping" in complaint(write(tmp_path / "b.yaml", "- 1\n"))
    assert "line 3: key `dual.rho` is here twice" in complaint(
        write(tmp_path / "c.yaml", "dual:\n  rho: 1.0\n  rho: 2.0\n")
    )
    assert "key `algorithm` is missing" in complaint(write(tmp_path / "d.yaml", "world: {kind: text}\n"))
    (tmp_path / "e.yaml").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read as text" in complaint(tmp_path / "e.yaml")


def test_recipes_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "extends: b.yaml\n")
    write(tmp_path / "b.yaml", "extends: a.yaml\n")
    assert "extend each other in a circle" in complaint(tmp_path / "a.yaml")


def test_a_missing_world_file_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in complaint("tabular", f"world.path={tmp_path}/none.json")
    assert "not a JSON file" in complaint("tabular", f"world.path={write(tmp_path / 'w.json', '{')}")


def test_a_reference_model_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    override = f"model.reference={tmp_path / 'model'}"
    assert "does not exist" in complaint("text-world", override)
    (tmp_path / "model").mkdir()
    assert "has no config.json" in complaint("text-world", override)
    write(tmp_path / "model" / "config.json", "{}")
    assert "has no *.safetensors" in complaint("text-world", override)
    write(tmp_path / "model" / "model.safetensors", "")
    assert "has no tokenizer; save it there too" in complaint("text-world", override)
    write(tmp_path / "model" / "tokenizer.json", "{}")
    assert checkpoint_problem(tmp_path / "model") is None
    assert load("text-world", [override]).model.reference == str(tmp_path / "model")
    write(tmp_path / "model" / "config.json", '{"max_position_embeddings": 63}')
    said = complaint("text-world", override)
    assert "rollout.max_model_len is 64, but model.reference has 63 positions: give rollout.max_model_len=63" in said
    load("text-world", [override, "rollout.max_model_len=63"])


def test_a_layer_adds_limits_takes_them_out_and_changes_them(tmp_path: Path) -> None:
    limits = "limits: {cost: null, harm: {logit: {world: cost}, at_most: -2}}\n"
    own = write(tmp_path / "own.yaml", f"extends: o-pd-dpo\n{limits}")
    assert load("o-pd-dpo").thresholds == {"cost": -3.0}
    assert load(str(own)).thresholds == {"harm": -2.0}
    assert load("o-pd-dpo", [limits.replace(": ", "=", 1).strip()]).thresholds == {"harm": -2.0}
    both = load("o-pd-dpo", ["limits.length={mean: {rule: words}, at_most: 13, bounds: [8, 20]}"])
    assert (both.thresholds, [one.labelled for one in both.stated]) == ({"cost": -3.0, "length": 13.0}, [False, False])
    assert load(str(own), ["limits.harm.at_most=-1"]).thresholds == {"harm": -1.0}


@pytest.mark.parametrize("settings", [[], ["people.languages=[de, en]"]])
def test_a_recipe_is_itself_after_the_journal_stored_it(settings: list[str]) -> None:
    config = load("text-world", settings)
    assert Config.model_validate(json.loads(json.dumps(config.model_dump(mode="json")))) == config


@pytest.mark.parametrize(
    ("recipe", "override", "written"),
    [
        ("real-text", "world.seed=3", "write data.seed=3"),
        ("align", "world.helpful=[a.jsonl]", "write 'data.helpful=[a.jsonl]'"),
        ("text-world", "world.prompt_tokens=96", "write data.prompt_tokens=96"),
        ("text-world", "world={kind: none, harmless: [b.jsonl]}", "'data.harmless=[b.jsonl]' 'data.reference={}'"),
        ("text-world", "world.kind=none", "write data.sample=true 'data.reference={}'"),
    ],
)
def test_files_named_under_world_are_refused_with_the_line_to_write(recipe: str, override: str, written: str) -> None:
    with pytest.raises(UserError) as refused:
        load(recipe, [override])
    assert str(refused.value).startswith(f"override `{override}`: `world.")
    assert str(refused.value).endswith(written)


def test_a_recipe_file_with_a_world_of_kind_none_is_refused_with_its_own_values(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: o-pd-dpo\nworld: {kind: none, helpful: [hf:org/pairs], prompt_count: 7}\n")
    with pytest.raises(UserError) as refused:
        load(str(file))
    line = "data: {helpful: ['hf:org/pairs'], prompt_count: 7, reference: {}}"
    assert "line 2: `world.kind` is no setting" in str(refused.value)
    assert str(refused.value).endswith(f"write {line}")
    file.write_text(f"extends: real-text\n{line}\n")
    config = load(str(file))
    assert config.data is not None
    assert (config.data.prompt_count, config.world) == (7, None)


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        ("text-world", ["world=null"], "the recipe has neither `data` nor `world`: name your files, e.g. data:"),
        ("real-text", ["data.sample=false"], "still to be given: data.helpful, files of pairs, e.g. data.helpful="),
        ("real-text", ["data.reference=null"], "still to be given: model.reference, the model to align"),
    ],
)
def test_nothing_is_trained_on_a_toy_in_silence(recipe: str, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        load(recipe, overrides)


def test_a_run_of_an_earlier_version_is_read_with_its_files_under_data() -> None:
    stored = load("real-text").model_dump(mode="json")
    data = stored.pop("data")
    former = {**stored, "world": {"kind": "none", **{key: value for key, value in data.items() if key != "sample"}}}
    assert Config.of_run(former) == load("real-text")
