"""docs/your-model.md, command by command, with a tiny model in place of SmolLM2."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from pddpo_ray.data import Settings, inspect
from tests.support.scorer_rows import rows_of_words, write_rows
from tests.support.small_align import SMALL_ALIGN, save_chat_model
from tests.support.tutorial_page import commands, ran_here

PAGE = Path(__file__).parents[3] / "docs" / "your-model.md"
LATER = {"serve"}
"""Commands that run until they are stopped: tests/serve runs them."""


def made_small(words: list[str]) -> list[str]:
    if words[1] == "train":
        return [*words[:3], *words[3:], *SMALL_ALIGN]
    if words[1:3] == ["scorer", "train"]:
        return [*words, "--device", "cpu"]
    if words[1:3] == ["limits", "suggest"]:
        return [*words, "--max-tokens", "6"]
    return words


def write_what_the_reader_has(folder: Path) -> None:
    """Pairs, labels, prompts, and the files that the page shows."""
    rows = rows_of_words(240, 5)
    pairs = [
        {
            "prompt": row["prompt"],
            "chosen": row[f"response_{row['better_response_id']}"],
            "rejected": row[f"response_{1 - row['better_response_id']}"],
        }
        for row in rows
    ]
    labels = [
        {"prompt": row["prompt"], "response": row[f"response_{side}"], "is_safe": row[f"is_response_{side}_safe"]}
        for row in rows
        for side in (0, 1)
    ]
    write_rows(folder / "helpful.jsonl", pairs)
    write_rows(folder / "safety.jsonl", labels)
    write_rows(folder / "prompts.jsonl", [{"prompt": row["prompt"]} for row in rows[:4]])
    shown = [yaml.safe_load(text) for text in re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.S | re.M)]
    (folder / "limits.yaml").write_text(json.dumps(shown[0]))
    (folder / "ours.yaml").write_text(json.dumps(shown[1]))


def test_the_rows_that_the_page_shows_are_read(tmp_path: Path) -> None:
    pair, label = re.findall(r"^```json\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    (tmp_path / "helpful.jsonl").write_text(pair, encoding="utf-8")
    (tmp_path / "safety.jsonl").write_text(label, encoding="utf-8")
    (good,) = inspect([str(tmp_path / "helpful.jsonl")], Settings(means="helpful")).examples()
    assert good.example.label("helpful") == 0
    (good,) = inspect([str(tmp_path / "safety.jsonl")], Settings(means="harmless")).examples()
    assert [answer.safe for answer in good.example.answers] == [False]


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_every_command_of_the_page_runs(tmp_path: Path) -> None:
    write_what_the_reader_has(tmp_path)
    done: dict[str, str] = {}
    for words in commands(PAGE.name):
        if words[1:3] == ["model", "fetch"]:
            save_chat_model(tmp_path / words[-1])
            continue
        if words[1] in LATER:
            continue
        done[" ".join(words[1:3])] = ran_here(tmp_path, made_small(words))
    assert "better than chance" in done["scorer train"]
    assert "NOT" not in done["scorer train"]
    for said in ("before round 1", "helpful", "round 3/3"):
        assert said in done["train smollm2"], said
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()
    assert (tmp_path / "aligned" / "model.safetensors").is_file()
    tiny = ["model.reference=models/smollm2", "rollout.max_model_len=128", "rollout.max_tokens=16"]
    planned = ran_here(tmp_path, ["pddpo", "train", "ours.yaml", "--dry-run", *tiny])
    for limit in ("unsafe: at most 5 %", "length: at most 80 words", "helpful: at least 50 %"):
        assert limit in planned
