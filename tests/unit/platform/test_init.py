"""`pddpo init`: a wish in words, the files and the machine looked at, and a recipe that loads and needs no warning."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from pddpo_ray.backends.machine import planned_machine
from pddpo_ray.cli.main import app
from pddpo_ray.config import Config, load
from pddpo_ray.errors import UserError
from pddpo_ray.limits.wishes import wish_of
from pddpo_ray.plan.warnings import warnings
from tests.support.scorer_rows import write_rows
from tests.support.tiny_language_model import save_policy, word_tokenizer

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
    assert (config.model.dtype, config.trainer.workers, config.rollout.engines) == ("bfloat16", 8, 8)
    assert (config.certificate.certify, config.offline.pairs, config.rollout.max_tokens) == ("end", 200, 608)
    assert "pddpo scorer train safety.jsonl --kind cost --base models/mine --out scorers/cost" in said
    assert "draws that a certificate takes" in said
    assert "pddpo train recipe.yaml --dry-run --gpus 8" in said
    keys = [line for line in Path("recipe.yaml").read_text().splitlines() if line.startswith("  ")]
    assert all("  # " in line for line in keys), "each setting has a comment"


@pytest.mark.slow
def test_rules_and_their_files(folder: Path) -> None:
    asked("", "ours/recipe.yaml", *FILES, "--limit", "at most 120 words, German only", "--limit", "no URLs")
    config = made("ours/recipe.yaml")
    limits = stated(config)
    del limits["helpful"]
    assert limits == {"length": "at most 120 words", "german": "at least 99 %", "urls": "at most 1 %"}
    assert "https?://" in Path("ours/urls.txt").read_text()
    assert yaml.safe_load(Path("ours/recipe.yaml").read_text())["model"]["reference"] == "../models/mine"
    assert all("scorer train" in warning for warning in warnings(config, planned_machine(0, 80)))


@pytest.mark.slow
def test_a_judge_and_what_is_missing_of_it(folder: Path) -> None:
    wish = ("--limit", "our own judge model says polite in 95 %")
    with pytest.raises(UserError, match="still to be given: --judge-endpoint, URL of the judge's endpoint"):
        asked("", *FILES, *wish)
    asked("", *FILES, *wish, "--judge-endpoint", "http://127.0.0.1:9/v1", "--judge-model", "ours")
    assert stated(made())["polite"] == "at least 95 %"
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


def test_a_limit_in_a_recipes_own_words() -> None:
    wish = wish_of(["calm: {rate: {rule: refusal}, at_most: 5 %}", "at most 3 % empty"], "m", "c")
    assert wish.limits["calm"] == {"rate": {"rule": "refusal"}, "at_most": "5 %"}
    assert wish.limits["empty"] == {"rate": {"rule": "empty"}, "at_most": "3 %"}
    with pytest.raises(UserError, match="there is a limit length already"):
        wish_of(["at most 9 words, at most 8 words"], "m", "c")
