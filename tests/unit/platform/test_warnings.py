"""Each warning of a dry run appears where it should, and not where the recipe is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pddpo_ray.backends.machine import GIB, Gpu, Machine
from pddpo_ray.cli.main import app
from pddpo_ray.config import Config, load
from pddpo_ray.plan.warnings import warnings
from tests.support.scorer_rows import write_rows
from tests.support.tiny_language_model import save_policy, word_tokenizer

HERE = Machine(cpus=4, memory_bytes=64 * GIB)
TURNS = "{% for m in messages %}{{ m.content }}{{ '<eos>' if m.role == 'assistant' else '' }}{% endfor %}"
LENGTH = "limits={cost: null, length: {mean: {rule: words}, at_most: %d, bounds: [0, 999]}}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer of whole words, and 30 pairs whose answers have 10 words."""
    made = tmp_path_factory.mktemp("warned")
    save_policy(made / "model", 0, context=512)
    tokenizer = word_tokenizer()
    tokenizer.chat_template = TURNS
    tokenizer.save_pretrained(made / "model")
    answers = {"chosen": "use a long match . " * 2, "rejected": "wait a long time . " * 2}
    write_rows(made / "pairs.jsonl", [{"prompt": f"how {'do ' * n}?", **answers} for n in range(30)])
    for name, right in (("coin", 20), ("good", 36)):
        (made / name).mkdir()
        (made / name / "scorer.json").write_text(json.dumps({"held_out": {"right": right, "trials": 40}}))
    return made


def recipe(folder: Path, *changes: str) -> Config:
    """A recipe without a warning, and changes to it."""
    right = [
        f"model.reference={folder / 'model'}",
        f"data.helpful=[{folder / 'pairs.jsonl'}]",
        LENGTH % 8,
        "rollout.max_tokens=64",
        "rollout.max_model_len=256",
        "data.prompt_count=160",
        "offline.pairs=160",
        "explore.calibration=640",
        "trainer.stages.first_cost={epochs: 1, batch_pairs: 48}",
    ]
    return load("real-text", [*right, *changes], check_files=False)


def said(folder: Path, *changes: str, machine: Machine = HERE) -> str:
    return "\n".join(warnings(recipe(folder, *changes), machine))


def gpus(count: int) -> Machine:
    return Machine(16, 256 * GIB, tuple(Gpu("card", 80 * GIB) for _ in range(count)))


def test_a_recipe_that_is_right_has_none(folder: Path) -> None:
    assert said(folder) == ""


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            [LENGTH % 230],
            "limits.length: at most 230 words can never bind: answers end at rollout.max_tokens=64; write",
        ),
        ([LENGTH % 40], "limits.length: cutting alone keeps answers near 40 words"),
        (
            ["limits.more={mean: {rule: words}, at_least: 90, bounds: [0, 999]}"],
            "limits.more: at least 90 words cannot be reached: answers end at rollout.max_tokens=64; write",
        ),
        (["offline.pairs=10"], "data.helpful: 10 of 30 pairs are used; write offline.pairs=30"),
        (["data.answer_tokens=8"], "data.helpful: about 100 % of the pairs are left out"),
        (["rollout.max_tokens=8", LENGTH % 3], "of answers like these are cut at rollout.max_tokens=8; 95 in 100 end"),
        (
            ["limits.unsafe={rate: {rule: refusal}, at_most: 2 %}", "certificate.draws=100", "feedback.responses=200"],
            "limits.unsafe: 100 draws certify nothing below 2 %: the test needs",
        ),
        (
            ["limits.unsafe={rate: {rule: refusal}, at_most: 1 %}"],
            "limits.unsafe: a round's 64 answers hold 0.64 failures at the limit",
        ),
        (
            ["explore.calibration=48", "data.prompt_count=12"],
            "trainer.stages.first_cost: 7 steps on 96 answers to 12 prompts",
        ),
    ],
)
def test_each_appears(changes: list[str], line: str, folder: Path) -> None:
    assert line in said(folder, *changes)


def test_rounds_on_the_newest_answers_count_as_steps_that_move(folder: Path) -> None:
    """Twelve rounds of two steps are more than the twenty that moved a real model."""
    short = ["explore.calibration=160", "rounds=12", "trainer.stages.cost={epochs: 1, batch_pairs: 16}"]
    assert "trainer.stages.first_cost: 2 steps on 160 answers to 160 prompts" in said(folder, *short)
    assert said(folder, *short, "trainer.measured=newest") == ""


def test_prompts_of_sets_are_not_counted_by_the_pairs(folder: Path) -> None:
    for name in "ab":
        (folder / f"{name}.jsonl").write_text(json.dumps({"prompt": f"Question {name}?"}) + "\n")
    sets = [f"prompts.{name}={{share: 0.5, files: ['{folder / name}.jsonl']}}" for name in "ab"]
    limit = ["limits.refuses={rate: {rule: refusal}, over: a, at_most: 20 %}", "offline.pairs=30"]
    assert said(folder, *sets, *limit) == "", "160 prompts with four own answers each, and all pairs"


def test_a_limit_that_its_draws_can_tell_has_none(folder: Path) -> None:
    assert said(folder, "limits.unsafe={rate: {rule: refusal}, at_most: 5 %}") == ""


def test_devices_that_stay_idle(folder: Path) -> None:
    assert "cluster: 7 of 8 GPUs stay idle; write cluster={mode: ray" in said(folder, machine=gpus(8))
    assert said(folder, machine=gpus(1)) == ""
    every = ["cluster={mode: ray, layout: time-shared}", "trainer.workers=2", "rollout.engines=2"]
    assert said(folder, *every, machine=gpus(2)) == ""


def test_scorers_that_are_no_better_than_a_coin(folder: Path) -> None:
    def limit(name: str) -> str:
        return f"limits.unsafe={{rate: {{score_model: '{folder / name}'}}, at_most: 5 %}}"

    assert "coin is not shown better than chance, right on 20 of 40 comparisons" in said(folder, limit("coin"))
    assert said(folder, limit("good")) == ""


def test_a_dry_run_prints_them_last(folder: Path) -> None:
    words = [f"data.helpful=[{folder / 'pairs.jsonl'}]", LENGTH % 230]
    done = CliRunner().invoke(app, ["train", "real-text", *words, "--dry-run"], catch_exceptions=False)
    last = done.stdout.split("\nwarnings\n")[1]
    assert last.startswith("  limits.length: at most 230 words can never bind")


def test_float32_on_a_gpu_is_warned_of_where_bfloat16_would_be_chosen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pddpo_ray.training.device.NARROW_FROM", 1)
    assert "write model.dtype=auto" in said(folder, machine=gpus(1))
    assert "model.dtype" not in said(folder, "model.dtype=auto", machine=gpus(1))
    assert "model.dtype" not in said(folder)
