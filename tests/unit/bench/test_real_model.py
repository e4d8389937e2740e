"""`python -m lab.studies.real_model.run` on a tiny model and made-up files: every step, killed in the midst of one."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lab.studies.real_model import kept_length
from lab.studies.real_model.run import METHODS, run_folder, steps
from pddpo_ray.errors import PddpoError
from pddpo_ray.journal import read_journal
from tests.support.scorer_rows import rows_of_words
from tests.support.small_align import SMALL_ALIGN, save_chat_model


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def made_up_data(folder: Path) -> Path:
    """The files that the experiment reads, of random words; prompts of training and test files differ."""
    folder.mkdir()
    for part, seed in (("train", 1), ("test", 2)):
        rows = rows_of_words(200, seed)
        for number, row in enumerate(rows):
            row["prompt"] = f"word{seed + 50} word{number % 41} word{number % 83}"
        write(folder / f"pku_saferlhf_{part}.jsonl.gz", rows)
        pairs = [
            {
                "prompt": row["prompt"],
                "chosen": row[f"response_{row['better_response_id']}"],
                "rejected": row[f"response_{1 - row['better_response_id']}"],
            }
            for row in rows
        ]
        write(folder / f"preferences_helpful_{part}.jsonl.gz", pairs)
    write(folder / "pku_saferlhf_prompts.jsonl.gz", [{"prompt": f"word7 word{n}"} for n in range(20)])
    for name, word in (("safety", 11), ("helpful", 12)):
        write(folder / f"eval_{name}_prompts.jsonl", [{"prompt": f"word{word} word{n}"} for n in range(12)])
    return folder


def experiment(data: Path, work: Path, *more: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "lab.studies.real_model.run",
        "--data",
        str(data),
        "--work",
        str(work),
        *more,
        *SMALL_ALIGN,
    ]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def rounds_of(run: Path) -> int:
    try:
        with read_journal(run / "journal.sqlite") as journal:
            return journal.next_round - 1
    except PddpoError:
        return 0


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_experiment_goes_on_after_a_kill_and_ends_with_a_table(tmp_path: Path) -> None:
    data, work = made_up_data(tmp_path / "data"), tmp_path / "work"
    save_chat_model(work / "model")
    first = experiment(data, work)
    deadline = time.monotonic() + 1200
    while rounds_of(run_folder(work, "o-pd-dpo", 0)) < 1:
        assert first.poll() is None, first.communicate()[0][-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    again = experiment(data, work)
    said = again.communicate(timeout=1200)[0]
    assert again.returncode == 0, said[-4000:]
    assert f"done: {work / 'scorers' / 'run-cost' / 'scorer.json'}" in said
    assert "--resume" in said
    table = (work / "table.md").read_text()
    for word in (
        "unsafe by the held-out judge",
        "KL to the reference",
        "wins against the reference",
        "| run-cost |",
        "at 0.5 times",
    ):
        assert word in table, table
    shown = json.loads((work / "before-and-after.json").read_text())
    assert len(shown) == 10
    assert set(shown[0]) == {"prompt", "reference", "o-pd-dpo"}
    third = experiment(data, work)
    said = third.communicate(timeout=600)[0]
    assert third.returncode == 0
    assert "$ pddpo" not in said, "what is done is not done again"


def test_judges_learn_from_other_files_than_the_runs_scorers(tmp_path: Path) -> None:
    asked = {step.done.parent.name: step.words for step in steps(tmp_path, tmp_path, [0]) if step.of == "scorers"}
    assert set(asked) == {"run-reward", "judge-reward", "run-cost", "judge-cost"}
    for kind in ("reward", "cost"):
        assert asked[f"run-{kind}"][2] != asked[f"judge-{kind}"][2]
        assert asked[f"run-{kind}"][-1] != asked[f"judge-{kind}"][-1], "another seed"
    runs = [step for step in steps(tmp_path, tmp_path, [0, 1]) if step.of == "train"]
    assert len({str(step.done) for step in runs}) == 2 * len(METHODS)


def test_the_kept_limit_is_a_users_commands_and_its_check_asks_other_prompts(tmp_path: Path) -> None:
    data, work = tmp_path / "data", tmp_path / "work"
    data.mkdir()
    for part, count in (("train", 70), ("test", 30)):
        asked = [f"\n\nHuman: Is {part} {number} even?\n\nAssistant:" for number in range(count)]
        write(data / f"preferences_helpful_{part}.jsonl.gz", [{"prompt": prompt} for prompt in asked])
    kept_length.write_prompts(data, work / "kept-length" / "prompts")
    files = sorted((work / "kept-length" / "prompts").glob("*.jsonl"))
    sets = [{json.loads(line)["prompt"] for line in file.read_text().splitlines()} for file in files]
    assert [len(one) for one in sets] == [30, 70]
    assert len(set().union(*sets)) == 100
    _, init, *others = kept_length.steps(data, work, [0, 1])
    assert init.words[0] == "init"
    assert str(files[1]) in init.words
    runs = [step.words for step in others if step.of == "train"]
    assert [words[:3] for words in runs] == [["train", str(init.done), f"seed={seed}"] for seed in (0, 1)]
    assert all(len(words) == 5 for words in runs), "no setting of the recipe is edited"
