"""The recipes for a user's own model: what they hold, and the one line that says what is still missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.config import load
from pddpo_ray.errors import UserError
from pddpo_ray.plan.memory import ModelShape, scorer_memory, trainer_bytes
from tests.support.scorer_rows import rows_of_words, write_rows
from tests.support.tiny_language_model import save_policy


@pytest.fixture(autouse=True)
def scorers_of_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders that the recipe's limits name, in the working folder."""
    monkeypatch.chdir(tmp_path)
    for kind in ("reward", "cost"):
        (tmp_path / "scorers" / kind).mkdir(parents=True)


def given(tmp_path: Path, **changes: str) -> list[str]:
    """All that `align` needs, with changes; empty: left out."""
    known = {
        "model.reference": str(save_policy(tmp_path / "base", 0, context=512)),
        "data.helpful": f"[{write_rows(tmp_path / 'pairs.jsonl', rows_of_words(20, 0))}]",
        "feedback.reward": f"{{path: '{tmp_path}'}}",
        "feedback.cost": f"{{path: '{tmp_path}'}}",
    } | {key.replace("__", "."): value for key, value in changes.items()}
    return [f"{key}={value}" for key, value in known.items() if value]


@pytest.mark.parametrize("recipe", ["align", "smollm2"])
def test_a_floor_on_helpfulness_is_in_it_by_default(recipe: str, tmp_path: Path) -> None:
    limits = {one.limit.name: one for one in load(recipe, given(tmp_path)).stated}
    assert set(limits) == {"unsafe", "helpful"}
    assert str(limits["helpful"].limit) == "at least 50 % versus the reference"
    assert limits["helpful"].wins
    assert limits["unsafe"].source.kind == "score_model"


LENGTH = "limits.length={mean: {rule: words}, at_most: 20, bounds: [0, 60]}"


def test_null_takes_a_limit_of_the_recipe_out(tmp_path: Path) -> None:
    said = given(tmp_path)
    assert {one.limit.name for one in load("align", [*said, "limits.unsafe=null"]).stated} == {"helpful"}
    own = tmp_path / "ours.yaml"
    own.write_text(
        "about: ours\nextends: align\nlimits: {unsafe: ~, length: {mean: {rule: words}, at_most: 9, bounds: [0, 60]}}\n"
    )
    assert {one.limit.name for one in load(str(own), said).stated} == {"helpful", "length"}
    out = ["limits={unsafe: null, helpful: null}"]
    for both in ([*out, LENGTH], [LENGTH, *out]):
        assert {one.limit.name for one in load("align", [*said, *both]).stated} == {"length"}
    back = "limits.unsafe={rate: {rule: refusal}, at_most: 5 %}"
    assert {one.limit.name for one in load("align", [*said, *out, back]).stated} == {"unsafe"}


@pytest.mark.parametrize(
    ("own", "models"),
    [
        (["limits.unsafe=null", "limits.helpful=null", LENGTH], ("reward",)),
        (["limits.unsafe=null", "limits.helpful=null", LENGTH, "reward={rule: words, bounds: [0, 60]}"], ()),
        (
            ["limits={unsafe: null, helpful: null, cost: {logit: {model: cost}, at_most: 0, labels_each: 8}}"],
            ("reward", "cost"),
        ),
    ],
)
def test_a_score_model_that_nobody_asks_is_neither_wanted_nor_loaded(
    own: list[str], models: tuple[str, ...], tmp_path: Path
) -> None:
    missing = {"reward": "./nowhere/reward", "cost": "./nowhere/cost"}
    there = {f"feedback.{kind}": f"{{path: {tmp_path if kind in models else path}}}" for kind, path in missing.items()}
    config = load("align", [*given(tmp_path, **there), *own])
    assert config.asked_models == models
    assert config.trained_scorers == ()
    planned = [need.count for need in scorer_memory(config, ModelShape(1_000_000, 100, 10, 1_000, 0, 50), "cpu")]
    assert planned == ([len(models)] if models else [])


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            ["limits.unsfe=null"],
            "override `limits.unsfe=null`: there is no limit `unsfe` to take out; the recipe states unsafe, helpful;"
            " did you mean `unsafe`?",
        ),
        (
            ["prompts.everyday=null"],
            "override `prompts.everyday=null`: there is no prompt set `everyday` to take out; the recipe states none",
        ),
        (
            ["limits.unsafe=null", "limits.helpful=null"],
            "limits: unsafe, helpful taken out, and none is left: state another one",
        ),
    ],
)
def test_what_cannot_be_taken_out_is_said_in_one_line(changes: list[str], line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as told:
        load("align", [*given(tmp_path), *changes])
    assert str(told.value) == line


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model__reference": ""}, "still to be given: model.reference, the model to align"),
        ({"data__helpful": ""}, "still to be given: data.helpful, files of pairs"),
        ({"model__reference": "/nowhere/model"}, "model.reference /nowhere/model does not exist; give a folder"),
        ({"data__helpful": "[/nowhere/pairs.jsonl]"}, "data.helpful: there is no file /nowhere/pairs.jsonl; give"),
        ({"data__prompts": "[/nowhere/asked.jsonl]"}, "data.prompts: there is no file /nowhere/asked.jsonl; give"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    changes: dict[str, str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--dry-run"]):
        done = CliRunner().invoke(app, ["train", "align", *given(tmp_path, **changes), *more])
        assert isinstance(done.exception, UserError)
        assert line in str(done.exception)
        assert "\n" not in str(done.exception)
        assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"limits__unsafe__rate": "{score_model: ./nowhere/cost}"},
            "limits.unsafe: there is no folder ./nowhere/cost; `pddpo scorer train FILES --kind cost",
        ),
        ({"feedback__reward": "{path: /nowhere/r}"}, "--kind reward --base MODEL --out /nowhere/r` makes it"),
    ],
)
def test_a_scorer_that_is_not_made_yet_is_planned_with_and_refused_by_a_run(
    changes: dict[str, str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, ["train", "align", *given(tmp_path, **changes)])
    assert isinstance(refused.exception, UserError)
    assert line in str(refused.exception)
    assert not (tmp_path / "runs").exists()
    words = ["train", "align", *given(tmp_path, **changes), "data.template=plain", "--dry-run"]
    planned = CliRunner().invoke(app, words)
    assert planned.exit_code == 0, planned.output
    assert line in planned.output[planned.output.index("\nwarnings") :]


def test_all_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.reference, .*; data\.helpful, "):
        load("align")


@pytest.mark.slow
def test_the_recipes_are_listed_and_planned(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["recipes", "--json"])
    assert {"align", "smollm2"} <= set(json.loads(listed.stdout)["recipes"])
    shown = CliRunner().invoke(app, ["recipes", "align"])
    assert "needs:" in shown.stdout
    settings = [*given(tmp_path), "data.template=plain"]  # the tiny model has no chat template
    planned = CliRunner().invoke(app, ["train", "smollm2", *settings, "--dry-run"], catch_exceptions=False)
    assert planned.exit_code == 0, planned.output
    assert "helpful: at least 50 % versus the reference, measured by score_model ./scorers/reward" in planned.stdout


def test_what_a_recipe_needs_decides_no_number(tmp_path: Path) -> None:
    config = load("align", given(tmp_path))
    assert config.model_copy(update={"needs": {}}).digest() == config.digest()


@pytest.mark.slow
def test_a_limit_of_another_kind_is_not_compared_as_the_recipes_own_was(tmp_path: Path) -> None:
    """A mean of the same name was read as one against the reference, which nobody had written."""
    mine = "limits.helpful={mean: {rule: sentences}, at_least: 1, bounds: [0, 40]}"
    limits = {one.limit.name: one.limit for one in load("align", [*given(tmp_path), mine]).stated}
    assert limits["helpful"].quantity.versus is None
    assert str(limits["helpful"]) == "at least 1 sentences"


@pytest.mark.parametrize(("recipe", "prompt", "answer"), [("align", 256, 256), ("smollm2", 96, 96)])
def test_a_model_of_135_million_parameters_fits_an_ordinary_machine(
    recipe: str, prompt: int, answer: int, tmp_path: Path
) -> None:
    """Batches of 48 pairs at once would take 38 GiB under `align`."""
    maps = 30 * (2 * (576 + 576) + 2 * (576 + 192) + 3 * (576 + 1536))
    shape = ModelShape(134_515_008, 576, 30, 49_152, maps, prompt + answer, prompt)
    assert sum(trainer_bytes(load(recipe, given(tmp_path)), shape).values()) < 12 * 2**30


def test_smollm2_has_the_number_of_own_answers_that_kept_a_limit(tmp_path: Path) -> None:
    """160 prompts with four answers each, 32 answers a step, one pass at 5e-4 (docs/real-model.md)."""
    config = load("smollm2", given(tmp_path))
    assert config.data is not None
    first = config.trainer.of_stage("first_cost")
    assert (config.data.prompt_count, config.explore.calibration) == (160, 640)
    assert (first.epochs, first.learning_rate, first.batch_pairs, config.dual.rho) == (1, 5e-4, 48, 3.0)
