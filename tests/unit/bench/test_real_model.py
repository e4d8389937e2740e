"""The experiment on a real model: its cells, and that no prompt of its held-out table was asked before."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from lab.studies.real_model import kept_length
from lab.studies.real_model.run import (
    ALONE,
    HELPFUL,
    OFFLINE,
    REGISTERED,
    SETS,
    cells,
    main,
    shares,
    steps,
    write_inputs,
)
from pddpo_ray.config import load

ROOT = Path(__file__).resolve().parents[3]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def made_up_data(folder: Path) -> Path:
    """Files of the experiment's names, prompts of one turn."""
    folder.mkdir()
    for part, count in (("train", 1300), ("test", 301)):
        rows = [
            {
                "prompt": f"\n\nHuman: Is {part} {number} even?\n\nAssistant:",
                "messages": [{"role": "user", "content": f"Is {part} {number} even?"}],
                "n_user_turns": 1,
                "chosen": "Yes.",
                "rejected": "No.",
            }
            for number in range(count)
        ]
        write(folder / f"preferences_helpful_{part}.jsonl.gz", rows)
    learned = [{"prompt": f"Harm of kind {number}?"} for number in range(100)]
    write(folder / "pku_saferlhf_train.jsonl.gz", learned)
    write(folder / "pku_saferlhf_prompts.jsonl.gz", learned + [{"prompt": f"Harm by {n}?"} for n in range(3067)])
    held_out = [{"prompt": f"Fresh harm by {number}?", "source": "q-harm"} for number in range(782)]
    write(folder / "eval_safety_prompts.jsonl", [*held_out, {"prompt": "How to kill a process?", "source": "xstest"}])
    return folder


def prompts_of(file: Path) -> set[str]:
    return {json.loads(line)["prompt"] for line in file.read_text().splitlines()}


def test_held_out_prompts_and_those_of_certificates_are_asked_by_nothing_else(tmp_path: Path) -> None:
    write_inputs(made_up_data(tmp_path / "data"), tmp_path)
    asked = [prompts_of(tmp_path / f"{name}.jsonl") for name in SETS]
    fresh = [prompts_of(tmp_path / f"fresh-{name}.jsonl") for name in SETS]
    assert [len(one) for one in fresh] == [REGISTERED["held_out_prompts"]] * 2
    assert not asked[0] & asked[1]
    assert not set().union(*asked) & set().union(*fresh)
    assert not any("of kind" in one for one in asked[0]), "the scorer of harm learned from those"
    assert not any("process" in one for one in fresh[0])
    apart = prompts_of(tmp_path / "certificate.jsonl")
    wanted = [share * REGISTERED["recipe"]["data.prompt_count"] for share in shares().values()]
    assert all(len(one - apart) >= count for one, count in zip(asked, wanted, strict=True))
    assert all(len(one & apart) > 500 for one in asked)


@pytest.mark.parametrize("name", cells())
def test_every_cell_is_a_recipe_under_the_same_limits(name: str, tmp_path: Path) -> None:
    before, *others, evaluate = steps(tmp_path, name)
    offline = name.startswith((OFFLINE, HELPFUL))
    commands = ["evaluate"] * offline + ["train"] + ["certify"] * name.startswith("o-pd-dpo")
    assert [step.words[0] for step in others] == commands
    train = others[offline]
    overrides = train.words[2 : train.words.index("--run")]
    config = load("align", overrides, check_files=False)
    kept = {name.split("-")[1]} if name.startswith(ALONE) else set(REGISTERED["limits"])
    assert {one.limit.name for one in config.stated} == kept
    assert (config.algorithm == "pd-dpo") is offline
    pairs = str(tmp_path / "inputs" / ("own.jsonl" if offline else "helpful.jsonl"))
    assert config.data is not None
    assert config.data.helpful == [pairs]
    first = {limit: dual.first for limit, dual in config.duals.items()}
    registered = {limit: one["dual"]["first"] for limit, one in REGISTERED["limits"].items() if limit in kept}
    factor = float(name.split("-")[1]) if name.startswith("penalty") else float(not name.startswith(HELPFUL))
    assert first == pytest.approx({limit: factor * value for limit, value in registered.items()})
    assert evaluate.words[:-1] == before.words[:-1], "the reference's answers are the same"
    assert evaluate.words[:2] == ["evaluate", f"reference={tmp_path / 'model'}"]


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


@pytest.mark.parametrize("page", ["docs/real-model.md", "Makefile", "lab/studies/real_model/run.py"])
def test_the_cells_that_pages_name_are_registered(page: str) -> None:
    named = re.findall(r"--cells ([\w.,-]+)", (ROOT / page).read_text(encoding="utf-8"))
    assert named
    assert {one for names in named for one in names.split(",")} <= set(cells())


def test_a_cell_that_is_not_registered_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--cells", "o-pd-dpo-3", "--dry-run"])
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"there is no cell o-pd-dpo-3: {', '.join(cells())}")
