"""`pddpo init`: a wish in words, the files and the machine looked at, and a recipe that loads and needs no warning."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pddpo_ray.backends.machine import Gpu, Machine, planned_machine
from pddpo_ray.cli.main import app
from pddpo_ray.config import Config, load
from pddpo_ray.data.lengths import Lengths, Measured
from pddpo_ray.data.prompt_parts import different_prompts
from pddpo_ray.driver.offline_setup import own_answers
from pddpo_ray.errors import UserError
from pddpo_ray.evaluate.models import Speaker
from pddpo_ray.limits.wishes import wish_of
from pddpo_ray.plan import first_draws
from pddpo_ray.plan.warnings import warnings
from pddpo_ray.plan.wish_size import Inputs
from pddpo_ray.plan.wished import config_of, planned_time, sized
from tests.support.scorer_rows import write_rows
from tests.support.tiny_language_model import save_policy, word_tokenizer
from tests.unit.report.test_docs import assert_exists

TURNS = "{% for m in messages %}{{ m.content }}{{ '<eos>' if m.role == 'assistant' else '' }}{% endfor %}"
FILES = ("--no-ask", "--model", "models/mine", "--pairs", "helpful.jsonl")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_policy(tmp_path / "models" / "mine", 0, context=1024)
    tokenizer = word_tokenizer()
    tokenizer.chat_template = TURNS
    tokenizer.save_pretrained(tmp_path / "models" / "mine")
    write_rows(
        tmp_path / "helpful.jsonl",
        [{"prompt": f"How {n}?", "chosen": "Open the gas .", "rejected": "No idea ."} for n in range(200)],
    )
    write_rows(
        tmp_path / "safety.jsonl",
        [{"prompt": f"How {n}?", "response": "Pour petrol on it.", "is_safe": n > 1} for n in range(4)],
    )
    return tmp_path


def asked(text: str, *arguments: str) -> str:
    done = CliRunner().invoke(app, ["init", *arguments], input=text)
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def made(recipe: str = "recipe.yaml") -> Config:
    return load(recipe, check_files=False)


def stated(config: Config) -> dict[str, str]:
    return {one.limit.name: str(one.limit) for one in config.stated}


def test_a_standard_input_that_ends_is_told_which_option_is_missing(folder: Path) -> None:
    with pytest.raises(UserError, match="still to be given: --model, Model to align"):
        asked("")
    with pytest.raises(UserError, match="still to be given: --pairs"):
        asked("models/mine\n")


@pytest.mark.slow
def test_a_wish_on_eight_gpus_is_a_recipe_without_a_warning(folder: Path) -> None:
    said = asked(
        "", *FILES, "--safety", "safety.jsonl", "--gpus", "8", "--limit", "at most 2 % unsafe, at most 300 tokens"
    )
    config = made()
    assert stated(config) == {
        "helpful": "at least 50 % versus the reference",
        "unsafe": "at most 2 %",
        "length": "at most 300 tokens",
    }
    assert all("scorer train" in warning for warning in warnings(config, planned_machine(8, 80)))
    assert (config.model.dtype, config.trainer.workers, config.rollout.engines) == ("auto", 8, 8)
    assert (config.certificate.certify, config.offline.pairs, config.rollout.max_tokens) == ("end", 200, 608)
    assert "pddpo scorer train safety.jsonl --kind cost --base models/mine --out scorers/cost" in said
    assert "draws that a certificate takes" in said
    assert "pddpo train recipe.yaml --dry-run --gpus 8" in said
    follow = re.findall(r"^  (pddpo .*)$", said, re.M)
    assert [line.split()[1] for line in follow] == ["scorer", "scorer", "train", "train", "serve"]
    for line in follow:
        assert_exists("what init prints", line.partition("#")[0])
    keys = [line for line in Path("recipe.yaml").read_text().splitlines() if line.startswith("  ")]
    assert all("  # " in line for line in keys), "each setting has a comment"


@pytest.mark.slow
def test_rules_and_their_files(folder: Path) -> None:
    asked("", "ours/recipe.yaml", *FILES, "--limit", "at most 120 words, German only", "--limit", "no URLs")
    config = made("ours/recipe.yaml")
    assert stated(config) == {"length": "at most 120 words", "german": "at least 99 %", "urls": "at most 1 %"}
    assert "https?://" in Path("ours/urls.txt").read_text()
    assert yaml.safe_load(Path("ours/recipe.yaml").read_text())["model"]["reference"] == "../models/mine"
    (said,) = warnings(config, planned_machine(0, 80))
    assert "64 of 200 pairs are used" in said, "and no score model is missing, since none is asked"


@pytest.mark.slow
def test_a_judge_and_what_is_missing_of_it(folder: Path) -> None:
    wish = ("--limit", "our own judge model says polite in 95 %")
    with pytest.raises(UserError, match="still to be given: --judge-endpoint, URL of the judge's endpoint"):
        asked("", *FILES, *wish)
    asked("", *FILES, *wish, "--judge-endpoint", "http://127.0.0.1:9/v1", "--judge-model", "ours")
    assert stated(made()) == {"polite": "at least 95 %"}
    assert Path("polite.md").read_text() == "Is this answer polite?\n"


@pytest.mark.slow
def test_questions_are_asked_again_until_an_answer_can_be_used(folder: Path) -> None:
    said = asked("models\nmodels/mine\nnowhere.jsonl\nsafety.jsonl\nhelpful.jsonl\nnice\nat most 9 words\n")
    for line in ("is no model folder", "holds no pairs", "`nice` is no known limit"):
        assert line in said
    assert stated(made())["length"] == "at most 9 words"


@pytest.mark.slow
def test_a_wrong_option_is_one_line_and_writes_nothing(folder: Path) -> None:
    with pytest.raises(UserError, match="holds no answers called safe or unsafe"):
        asked("", *FILES, "--limit", "at most 2 % unsafe", "--safety", "helpful.jsonl")
    with pytest.raises(UserError, match="still to be given: --limit"):
        asked("", *FILES)
    assert not Path("recipe.yaml").exists()
    Path("recipe.yaml").touch()
    with pytest.raises(UserError, match=r"recipe\.yaml exists already"):
        asked("", *FILES)


@pytest.mark.slow
def test_prompts_of_users_are_parted_and_each_is_in_one_part(folder: Path) -> None:
    rows = [{"prompt": f"Why {n % 250} ?", "category": "why"} for n in range(300)]
    write_rows(folder / "asked.jsonl", rows)
    said = asked("", "ours/own.yaml", *FILES, "--prompts", "asked.jsonl", "--limit", "at most 14 words")
    parts = {
        key: {json.loads(line)["prompt"][0]["content"] for line in (folder / "ours" / key).read_text().splitlines()}
        for key in ("own-rounds.jsonl", "own-certificate.jsonl")
    }
    assert [len(part) for part in parts.values()] == [125, 125], "at most half are the rounds'"
    assert len(set().union(*parts.values())) == 250
    config = made("ours/own.yaml")
    assert config.data is not None
    assert config.data.prompts == [str(folder / "ours" / "own-rounds.jsonl")]
    assert config.certificate.prompts == [str(folder / "ours" / "own-certificate.jsonl")]
    assert config.certificate.scope == "set", "too few to draw each once"
    assert "125 of your prompts, for certificates alone" in said


def test_a_model_of_135_million_parameters_on_two_cores_gets_a_plan_of_an_hour() -> None:
    """What moved SmolLM2 (docs/real-model.md)."""
    given = given_on(Machine(cpus=2, memory_bytes=16 * 2**30))
    sections, seconds = sized(given)
    assert seconds is not None
    assert 15 * 60 < seconds <= 60 * 60
    config = config_of(sections)
    assert config.data is not None
    assert (config.rounds, config.offline.pairs, config.dual.margin) == (1, 64, "certificate")
    assert (config.data.prompt_count, config.explore.calibration, config.data.prompt_tokens) == (160, 640, 64)
    first, reward = (config.trainer.of_stage(stage) for stage in ("first_cost", "first_reward"))
    assert (first.epochs, first.learning_rate, first.batch_pairs) == (1, 5e-4, 48)
    assert (reward.epochs, reward.learning_rate, reward.batch_pairs) == (2, 1e-4, 8)
    assert config.rollout.max_tokens == 112, "where 97 % of the model's first answers end"
    assert config.trained_scorers == ("reward",)
    assert config.asked_models == ("reward",)
    (length,) = config.stated
    assert length.limit.cost_range == (0.0, 112.0)
    assert f"about {seconds / 60:.0f} minutes on 2 cores" in sections["rounds"][1]


def test_a_larger_model_on_cpus_gets_the_least_plan_and_its_hours(one_core: Machine) -> None:
    sections, seconds = sized(given_on(one_core, parameters=1_700_000_000))
    assert seconds is not None
    assert seconds > 3 * 3600
    assert f"about {seconds / 60:.0f} minutes on one core" in sections["rounds"][1]


@pytest.mark.parametrize(
    ("seconds", "said"), [(20, "under a minute on"), (50, "about 1 minute on"), (200, "about 3 minutes on")]
)
def test_a_planned_time_is_said_in_english(one_core: Machine, seconds: float, said: str) -> None:
    assert planned_time(given_on(one_core, parameters=135_000_000), seconds).startswith(said)


def test_with_gpus_every_pair_and_prompt_counts() -> None:
    gpu = Machine(cpus=8, memory_bytes=96 * 2**30, gpus=(Gpu("one", 80 * 2**30),))
    sections, seconds = sized(given_on(gpu))
    assert seconds is None
    assert "rounds" not in sections
    assert (sections["offline"]["pairs"][0], sections["data"]["prompt_count"][0]) == (4676, 600)


def test_the_price_of_a_length_acts_in_the_first_round_whatever_other_limits_there_are(one_core: Machine) -> None:
    """Limits share the first price otherwise, and a quarter of it moves nothing in a round."""
    wish = wish_of(
        ["at most 14.2 words on average", "at most 5 % unsafe", "at most 10 % refusals"], "m", "./scorers/cost"
    )
    sections, _ = sized(replace(given_on(one_core), wish=wish))
    assert sections["limits"]["helpful"][0]["versus"] == "reference"
    assert sections["rounds"][0] == 12, "other limits' multipliers are found by rounds"
    price = sections["limits"]["length"][0]["dual"]
    assert price["first"] == price["rho"] > 0
    config = config_of(sections)
    assert own_answers(config, 160) == config.explore.calibration == 640, "all own answers teach beside a floor too"


@pytest.fixture
def one_core() -> Machine:
    return Machine(cpus=1, memory_bytes=16 * 2**30)


def given_on(machine: Machine, parameters: int = 134_515_008) -> Inputs:
    """Pairs of HH-RLHF, short questions and SmolLM2's answers to them, by their quantiles."""
    pairs = tuple(Measured(40 + 9 * n, (60 + n % 40, 50), (45 + n % 30, 40)) for n in range(90))
    asked = tuple(Measured(40 + n % 21, (), ()) for n in range(90))
    drawn = tuple(Measured(47, (12 + n,), (9 + round(0.75 * n),)) for n in range(88))
    return Inputs(
        model="models/smollm2", parameters=parameters, context=8192, pairs="helpful.jsonl",
        lengths=Lengths(4676, 4675, pairs), wish=wish_of(["at most 14.2 words"], "m", "c"), machine=machine,
        reward="./scorers/reward", judge={}, prompts="own-rounds.jsonl", asked=Lengths(600, 600, asked),
        drawn=Lengths(88, 88, drawn), certificate_prompts="own-certificate.jsonl", certified=603,
    )  # fmt: skip


def test_a_limit_in_a_recipes_own_words() -> None:
    wish = wish_of(["calm: {rate: {rule: refusal}, at_most: 5 %}", "at most 3 % empty"], "m", "c")
    assert wish.limits["calm"] == {"rate": {"rule": "refusal"}, "at_most": "5 %"}
    assert wish.limits["empty"] == {"rate": {"rule": "empty"}, "at_most": "3 %"}
    with pytest.raises(UserError, match="there is a limit length already"):
        wish_of(["at most 9 words, at most 8 words"], "m", "c")


@pytest.mark.slow
def test_a_model_is_asked_a_few_prompts_at_a_time_and_its_answers_are_those_to_all_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = different_prompts(["helpful.jsonl"])
    drawn = first_draws.first_draws("models/mine", prompts, 16, 1.0)
    together: list[int] = []
    answer = Speaker.answer

    def watched(self: Speaker, asked: list[Any], *rest: Any) -> Any:
        together.append(len(asked))
        return answer(self, asked, *rest)

    monkeypatch.setattr(Speaker, "answer", watched)
    assert first_draws.first_draws("models/mine", prompts, 16, 1.0) == drawn
    assert together == [32, 32, 32, 32]
    monkeypatch.setattr(first_draws, "TOGETHER", 128)
    assert first_draws.first_draws("models/mine", prompts, 16, 1.0) == drawn
    assert together[4:] == [128]
