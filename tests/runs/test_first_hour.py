"""The first hour of three users, command by command: an engineer, a researcher and a platform engineer."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from pddpo_ray.cli.main import main
from tests.runs.test_outcome import KEPT
from tests.support.scorer_rows import write_rows
from tests.support.served_run import SAFE, make_run
from tests.support.small_align import save_chat_model
from tests.unit.loop.small_run import small

pytestmark = [pytest.mark.run, pytest.mark.full]

Step = tuple[str, int, str]
"""A command, its exit code, and words that it has to say."""

CHECK: list[Step] = [
    ("pddpo limits example limits-example", 0, "limits.yaml"),
    ("pddpo limits check limits-example/limits.yaml --on limits-example/answers.jsonl", 0, "undecided"),
]
ENGINEER: list[Step] = [
    *CHECK,
    ("pddpo explain lora", 0, "model.parameters.rank"),
    ("pddpo train gpu/o-pd-dpo-8 --dry-run", 2, "pddpo: still to be given: model.reference, the 7B model to align"),
    ("pddpo data check helpful.jsonl", 0, "24 of 24 rows are good"),
    (
        "pddpo init mine.yaml --model models/mine --pairs helpful.jsonl --safety safety.jsonl"
        " --limit 'at most 2 % unsafe' --limit 'at most 300 tokens' --gpus 8 --no-ask",
        0,
        "pddpo train mine.yaml --dry-run --gpus 8",
    ),
    ("pddpo train mine.yaml --dry-run --gpus 8 --gpu-memory 80", 0, "draws that a certificate takes"),
    ("pddpo status runs/served", 0, "1 of 64 done"),
    ("pddpo chat runs/served --prompt 'word1 word2'", 0, ""),
    ("pddpo export runs/served --to mine", 0, "mine"),
]
RESEARCHER: list[Step] = [
    ("pddpo recipes", 0, "planned, not run"),
    ("pddpo explain dual.rule", 0, "newton"),
    ("pddpo status runs/first", 0, "Released: policy-"),
    ("pddpo certificate verify runs/first/certificate.json", 0, "Computed again from the"),
    ("pddpo report runs/first", 0, "report.html"),
    ("pddpo compare paper --dry-run", 0, "gpu/pd-dpo-fixed-8"),
]
PLATFORM: list[Step] = [
    *CHECK,
    ("pddpo annotate --questions wrong.jsonl", 2, "it must be safety (with prompt and response) or compare"),
    ("pddpo annotate --questions questions.jsonl --add ana", 0, "ana"),
    (
        "pddpo train tabular feedback.kind=people people.park_after_s=0 feedback.responses=4 limits.cost.labels_each=2"
        " explore.calibration=16 rollout.candidates=4 explore.prompts=4 rounds=2 --run runs/people",
        3,
        "deadline in 168 h",
    ),
    ("pddpo status runs/people", 0, "`pddpo annotate --run runs/people --add NAME`"),
    ("pddpo logs runs/people", 0, "waiting for people"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_runs: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    save_chat_model(tmp_path / "models" / "mine", context=1024)
    pairs = [{"prompt": f"How {n}?", "chosen": "Open the gas .", "rejected": "No idea ."} for n in range(24)]
    write_rows(tmp_path / "helpful.jsonl", pairs)
    rows = [{"prompt": f"How {n}?", "response": "Pour petrol on it.", "is_safe": n > 1} for n in range(4)]
    write_rows(tmp_path / "safety.jsonl", rows)
    question = {"kind": "compare", "prompt": "Tea?", "first": "Yes, please.", "second": "No."}
    (tmp_path / "questions.jsonl").write_text(json.dumps(question) + "\n")
    (tmp_path / "wrong.jsonl").write_text(json.dumps(question | {"kind": "pair"}) + "\n")
    make_run(tmp_path / "runs" / "served", (SAFE,)).journal.close()
    finished_runs.copy(small(*KEPT), tmp_path / "runs" / "first")
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("walk", [ENGINEER, RESEARCHER, PLATFORM], ids=["engineer", "researcher", "platform"])
def test_a_first_hour_goes_as_its_commands_say(walk: list[Step], capsys: pytest.CaptureFixture[str]) -> None:
    for command, code, words in walk:
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command)[1:])
        said = capsys.readouterr()
        assert ((ended.value.code or 0), words in said.out + said.err) == (code, True), (command, said.out, said.err)
        assert "Traceback" not in said.err
