"""A person's way, from the commands that `pddpo init` prints and docs/your-model.md: pairs in a file, answers out.

The endpoint is this file's own: it serves the run that the test has trained.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.scorer_rows import rows_of_words, write_rows
from tests.support.served_process import served
from tests.support.small_align import SMALL_ALIGN, save_chat_model
from tests.support.tutorial_page import blocks, ran_here

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1800)]
ANSWERS = "models/mine\nhelpful.jsonl\nat most 90 % unsafe\nsafety.jsonl\n"
"""To its questions; the limit is loose, since a tiny model of random words is to keep it."""


def write_what_the_reader_has(folder: Path) -> None:
    rows = rows_of_words(240, 5)
    pairs, labels = [], []
    for row in rows:
        first = row["better_response_id"]
        chosen, rejected = (row[f"response_{side}"] for side in (first, 1 - first))
        pairs.append({"prompt": row["prompt"], "chosen": chosen, "rejected": rejected})
        labels += [
            {"prompt": row["prompt"], "response": row[f"response_{side}"], "is_safe": row[f"is_response_{side}_safe"]}
            for side in (0, 1)
        ]
    write_rows(folder / "helpful.jsonl", pairs)
    write_rows(folder / "safety.jsonl", labels)
    save_chat_model(folder / "models" / "mine")


def test_a_file_of_pairs_becomes_an_answer_of_the_endpoint(tmp_path: Path) -> None:
    write_what_the_reader_has(tmp_path)
    asked = subprocess.run(
        [sys.executable, "-m", "pddpo_ray", "init", "ours.yaml"],
        cwd=tmp_path, input=ANSWERS, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    follows = [shlex.split(line) for line in asked.stdout.splitlines() if line.strip().startswith("pddpo ")]
    assert [words[1] for words in follows] == ["scorer", "scorer", "train", "train", "serve"]
    for words in follows[:2]:
        assert "better than chance" in ran_here(tmp_path, [*words, "--device", "cpu"])
    for words in follows[2:4]:
        ran_here(tmp_path, [*words, *SMALL_ALIGN, "rounds=2"])
    run = tmp_path / "runs" / "mine"
    loose = ["--policy", "last", "--limit", "unsafe=0.95", "--limit", "helpful=0.05", "--budget", "128"]
    certified = ran_here(tmp_path, ["pddpo", "certify", "runs/mine", *loose])
    assert re.search(r"at most \d", certified)
    ran_here(tmp_path, ["pddpo", "export", "runs/mine", "--to", "aligned", "--round", "2"])
    assert (tmp_path / "aligned" / "model.safetensors").is_file()
    prompt = json.loads((tmp_path / "helpful.jsonl").read_text().splitlines()[0])["prompt"]
    with served(run, tmp_path / "serve.log") as endpoint:
        (script,) = blocks("serving.md", "py")
        script = script.replace("http://127.0.0.1:8800", endpoint.url).replace("runs/mine", str(run))
        # nothing is released: the limit is certified without the margin that a release needs
        script = script.replace('"released"', '"round-2"').replace("how do I sleep better", prompt)
        told: dict[str, Any] = {}
        exec(compile(script, "serving.md", "exec"), told)
    assert told["reply"].choices[0].message.content
    assert told["reply"].model_extra["pddpo"]["round"] == 2
