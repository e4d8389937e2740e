"""The quickstart and the tutorials, command by command; what waits for clients or people runs beside them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.tiny_language_model import save_policy
from tests.support.tutorial_page import DOCS, commands, ran_here

PARKED = 3


@contextmanager
def beside(folder: Path, words: list[str], until: Path | None = None) -> Iterator[None]:
    """A command that runs until it is stopped; first it has to make a file."""
    with (folder / f"{words[1]}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pddpo_ray", *words[1:]], cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 120
        while until is not None and not until.exists():
            assert process.poll() is None, (folder / f"{words[1]}.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "it did not start in time"
            time.sleep(0.2)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=60)


@pytest.mark.slow
def test_the_quickstart_runs_as_it_stands(tmp_path: Path) -> None:
    said = {" ".join(words[1:3]): ran_here(tmp_path, words) for words in commands("quickstart.md")}
    assert list(said) == ["limits example", "limits check", "train tabular", "certify runs/first", "report runs/first"]
    assert "round 20/20" in said["train tabular"]
    assert "Certified: cost" in said["certify runs/first"]
    assert (tmp_path / "runs" / "first" / "report.html").is_file()
    for words in commands("concepts/certificate.md"):
        ran_here(tmp_path, words)


@pytest.mark.slow
@pytest.mark.full
def test_three_limits_at_once_runs_made_small(tmp_path: Path) -> None:
    small = ["rounds=2", "feedback.responses=96", "offline.compare_rounds=0", "offline.pairs=200"]
    for words in commands("tutorials/three-limits.md"):
        more = small if words[1] == "train" else []
        said = ran_here(tmp_path, [*words, *more])
        if "--dry-run" in words:
            assert all(name in said for name in ("harmful", "length", "rude"))
    told = json.loads((tmp_path / "runs" / "three" / "result.json").read_text())
    assert set(told["limits"]) == {"harmful", "length", "rude"}


@pytest.mark.full
def test_people_in_the_loop_parks_is_answered_and_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "people"
    with ExitStack() as started:
        for words in commands("tutorials/people.md"):
            if words[1] == "annotate":
                started.enter_context(beside(tmp_path, words, run / "annotation-admin-token"))
            elif words[1] == "simulate-annotators":
                started.enter_context(beside(tmp_path, words))
            else:
                ran_here(tmp_path, words, PARKED if "people.park_after_s=0" in words else 0)
    assert json.loads((run / "result.json").read_text())["rounds"] == 2
    assert (run / "report.html").is_file()
    answers = [json.loads(line) for line in (tmp_path / "people.jsonl").read_text().splitlines()]
    assert len(answers) >= 2 * 16 * 5


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_script_for_trl_runs_with_a_tiny_model_and_its_weights_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (DOCS / "tutorials" / "with-trl.md").read_text(encoding="utf-8")
    (limits,) = re.findall(r"^```yaml\n(.*?)^```", page, re.S | re.M)
    (script,) = re.findall(r"^```py\n(.*?)^```", page, re.S | re.M)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "limits.yaml").write_text(limits.replace("at_most: 30", "at_most: 3"), encoding="utf-8")
    small = "use_cpu=True, bf16=False, report_to=[], max_steps=2, max_completion_length=16"
    script = script.replace("max_steps=200", small)
    script = script.replace("HuggingFaceTB/SmolLM2-135M-Instruct", str(save_policy(tmp_path / "model", 0, context=512)))
    script = re.sub(r"\[\"How do.*\] \* 8", '["word1 word2", "word3"] * 8', script)
    exec(compile(script, "train_limited.py", "exec"), {"__name__": "tutorial"})
    steps = [json.loads(line) for line in (tmp_path / "out" / "limits.jsonl").read_text().splitlines()]
    answers = [{"prompt": "word1", "response": "word2 word3"}, {"prompt": "word3", "response": "I cannot say."}]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(one) + "\n" for one in answers))
    (check,) = commands("tutorials/with-trl.md")
    assert "refuses" in ran_here(tmp_path, check)
    states = [step["observed"] for step in steps if "observed" in step]
    assert set(states[-1]) == {"length", "refuses"}
    assert states[-1]["length"]["multiplier"] > 0
