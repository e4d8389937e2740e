"""`pddpo scorer train`: what it learns, what it says of itself, and that a killed training goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.config import ScorerJob
from pddpo_ray.errors import UserError
from pddpo_ray.scoring.fit_checkpoints import FILE
from pddpo_ray.scoring.learned_prompts import hashes_of, learned_by
from pddpo_ray.scoring.scorer_job import _open_work_folder
from pddpo_ray.scoring.stored_scorers import load_scorer
from tests.support.scorer_rows import BAD, GOOD, TEMPLATE, rows_of_words, write_rows
from tests.support.tiny_language_model import save_policy


def options(tmp_path: Path, file: Path, out: str, *more: str) -> list[str]:
    base = tmp_path / "base"
    if not base.exists():
        save_policy(base, 0)
    return [
        "scorer", "train", str(file), "--kind", "cost", "--base", str(base), "--out", str(tmp_path / out),
        "--template", TEMPLATE, "--device", "cpu", *more,
    ]  # fmt: skip


def trained(arguments: list[str]) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.run
def test_a_cost_model_on_frozen_features_is_right_calibrated_and_reads_back(tmp_path: Path) -> None:
    """The words decide and a linear map of the state at the end can see it. The zero parts safe from unsafe."""
    report = trained(options(tmp_path, write_rows(tmp_path / "pairs.jsonl", rows_of_words(500, 1)), "cost"))
    held_out = report["held_out"]
    assert held_out["better_than_chance"]
    assert held_out["low"] > 0.7
    assert held_out["labels"]["low"] > 0.6
    assert held_out["labels"]["reliability"]["expected_calibration_error"] < 0.2
    assert report["calibration"]["zero_is_known"]
    assert (tmp_path / "cost" / "reliability.svg").read_text().lstrip().startswith("<?xml")
    assert not (tmp_path / "cost.training").exists()
    scorer = load_scorer(tmp_path / "cost")
    safe, unsafe = ([" ".join(words[i : i + 4]) for i in range(0, 16, 4)] for words in (GOOD, BAD))
    scores = scorer.score_texts([("word61 word1", answer) for answer in (*safe, *unsafe)])
    assert scores[:4].mean() < 0 < scores[4:].mean()
    again = trained([*options(tmp_path, tmp_path / "pairs.jsonl", "cost"), "--resume"])
    assert again["held_out"] == held_out, "a finished training is read back"


@pytest.mark.run
def test_single_answers_with_labels_are_enough_for_a_cost(tmp_path: Path) -> None:
    rows = [
        {"prompt": row["prompt"], "response": row[f"response_{side}"], "is_safe": row[f"is_response_{side}_safe"]}
        for index, row in enumerate(rows_of_words(700, 2))
        for side in [index % 2]
    ]
    report = trained(options(tmp_path, write_rows(tmp_path / "labels.jsonl", rows), "cost"))
    assert "pairs" not in report["held_out"]
    assert report["held_out"]["better_than_chance"]
    assert report["held_out"]["labels"]["low"] > 0.6
    named = [{"ask": row["prompt"], "quality": 3, **{key: row[key] for key in ("response", "is_safe")}} for row in rows]
    file = write_rows(tmp_path / "named.jsonl", named)
    same = trained(options(tmp_path, file, "other", "--column", "prompt=ask", "--ignore", "quality"))
    assert same["held_out"] == report["held_out"], "the same rows under other names"


@pytest.mark.run
def test_labels_that_say_nothing_are_told_apart(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "noise.jsonl", rows_of_words(300, 3, shuffled=True))
    done = CliRunner().invoke(app, options(tmp_path, file, "noise"), catch_exceptions=False)
    assert "NOT better than chance" in done.output
    assert "a run holds" in done.output


@pytest.mark.full
@pytest.mark.run
def test_a_training_says_its_own_lines_and_no_bar_of_a_library(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "pairs.jsonl", rows_of_words(60, 1))
    command = [sys.executable, "-m", "pddpo_ray", *options(tmp_path, file, "quiet")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    assert "rows to fit" in done.stderr
    assert [line for line in done.stderr.splitlines() if "it/s" in line or "Loading" in line] == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--held-out", "0.8", "--calibration", "0.4"], "leave no prompt to learn from"),
        (["--template", "{prompt}"], "lacks {prompt} or {answer}"),
        (["--kind", "reward"], "no pairs that say which answer is better"),
        (["--base", "nowhere"], "no such folder"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path: Path, more: list[str], message: str) -> None:
    rows = [{"prompt": "word1", "response": f"word{i}", "is_safe": True} for i in range(9)]
    done = CliRunner().invoke(app, [*options(tmp_path, write_rows(tmp_path / "few.jsonl", rows), "x"), *more])
    assert message in str(done.exception)
    assert not (tmp_path / "x").exists()


@pytest.mark.run
@pytest.mark.parametrize(
    "parameters", [pytest.param("lora", marks=pytest.mark.slow), pytest.param("full", marks=pytest.mark.full)]
)
def test_a_killed_training_goes_on_and_ends_as_an_unbroken_one(tmp_path: Path, parameters: str) -> None:
    file = write_rows(tmp_path / "pairs.jsonl", rows_of_words(300, 4))
    more = ["--parameters", parameters, "--epochs", "8", "--learning-rate", "0.003", "--checkpoint-steps", "20"]
    command = [sys.executable, "-m", "pddpo_ray", *options(tmp_path, file, "killed", *more)]
    process = subprocess.Popen(command, env=os.environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not (tmp_path / "killed.training" / FILE).exists():
        assert process.poll() is None, "it ended before a checkpoint was written"
        assert time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed").exists(), "the folder appears at the end"
    refused = CliRunner().invoke(app, options(tmp_path, file, "killed", *more))
    assert "add --resume" in str(refused.exception)
    other = CliRunner().invoke(app, [*options(tmp_path, file, "killed", *more, "--batch", "8"), "--resume"])
    assert "begun with another batch" in str(other.exception)
    resumed = trained([*options(tmp_path, file, "killed", *more), "--resume"])
    whole = trained(options(tmp_path, file, "whole", *more))
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("killed", "whole"))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        np.testing.assert_allclose(ours[name], tensor, atol=1e-5, err_msg=name)
    assert resumed["held_out"]["right"] == whole["held_out"]["right"]
    assert whole["held_out"]["better_than_chance"]


def test_a_training_begun_before_a_setting_came_goes_on(tmp_path: Path) -> None:
    """The note of a version before has no `template`, say: it was begun with its default."""
    file = write_rows(tmp_path / "pairs.jsonl", rows_of_words(60, 5))
    job = ScorerJob(kind="cost", files=(str(file),), base="somewhere")
    work = _open_work_folder(job, tmp_path / "out", resume=False)
    note = work / "job.json"
    begun = json.loads(note.read_text())
    del begun["job"]["template"]
    note.write_text(json.dumps(begun))
    assert _open_work_folder(job, tmp_path / "out", resume=True) == work
    with pytest.raises(UserError, match="begun with another template;"):
        _open_work_folder(job.model_copy(update={"template": TEMPLATE}), tmp_path / "out", resume=True)
    note.write_text(json.dumps({**begun, "job": {**begun["job"], "gone": 1}}))
    with pytest.raises(UserError, match="begun with another gone;"):
        _open_work_folder(job, tmp_path / "out", resume=True)


@pytest.mark.full
@pytest.mark.slow
def test_a_scorer_says_which_prompts_it_learned_from_and_none_that_judge_it(tmp_path: Path) -> None:
    rows = [{**row, "prompt": f"Word{60 + index % 20}  word{index}"} for index, row in enumerate(rows_of_words(60, 6))]
    report = trained(options(tmp_path, write_rows(tmp_path / "pairs.jsonl", rows), "cost"))
    learned = learned_by(tmp_path / "cost")
    assert learned is not None
    assert len(learned) == report["rows"]["fit"] + report["rows"]["calibrate"] < 60
    every = hashes_of(str(row["prompt"]).lower() for row in rows)
    assert learned < set(every), "case and white space do not matter"
    assert len(set(every) - learned) == report["rows"]["judge"]
    assert learned_by(tmp_path) is None
