"""TRL's own GRPOTrainer with limits: the weights are the controller's, in a step, over a checkpoint, and refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from pddpo_ray.errors import UserError
from pddpo_ray.integrations.certifying import Question, certify_saved
from pddpo_ray.integrations.saved_policies import saved_names
from tests.support.limited_trl import LIMITS, STEPS, helpful, limited, steps_of, train, trainer_of
from tests.support.tiny_language_model import save_policy, word_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "integrations.md"
DEADLINE_S = 300


def test_weights_move_with_every_step_and_a_checkpoint_goes_on_with_the_same(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    limits = limited(whole)
    trainer = trainer_of(whole, limits, 6)
    limits.attach(trainer)
    trainer.train()
    told = steps_of(whole)
    assert sorted(told) == list(range(6))
    assert told[0]["length"] > 0, "sixteen words against six"
    assert trainer.reward_weights[1:].tolist() == pytest.approx(list(told[5].values()))
    assert trainer.reward_weights[0] == 1.0
    logged = [entry["limits/length/multiplier"] for entry in trainer.state.log_history[:6]]
    assert logged == pytest.approx([told[step]["length"] for step in range(6)])
    # killed after the checkpoint: another trainer, the same folder
    tear(whole, '{"step": 6, "st')
    again = limited(whole)
    second = trainer_of(whole, again, 6)
    again.attach(second)
    second.train(resume_from_checkpoint=str(whole / "checkpoint-3"))
    assert steps_of(whole) == told


@pytest.mark.full
def test_a_killed_run_goes_on_with_the_multipliers_of_an_unbroken_one(tmp_path: Path) -> None:
    """SIGKILL in the middle of step 5, two steps after the checkpoint; a new process does the rest."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(whole)
    command = [sys.executable, "-m", "tests.support.limited_trl", str(killed)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*command, "--hold", "5"], env=alone, cwd=ROOT) as process:
        try:
            deadline = time.monotonic() + DEADLINE_S
            while not (killed / "held").exists():
                assert process.poll() is None, "the run ended by itself"
                assert time.monotonic() < deadline, "the run did not come to step 5"
                time.sleep(0.1)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    assert sorted(steps_of(killed)) == list(range(5))
    assert (killed / "checkpoint-3").is_dir()
    subprocess.run(command, env=alone, cwd=ROOT, check=True, timeout=DEADLINE_S)
    again = [line for line in (killed / "limits.jsonl").read_text().splitlines() if '"rewound": 3' in line]
    assert len(again) == 1, "from the checkpoint, not from the start"
    assert steps_of(killed) == steps_of(whole)
    assert sorted(steps_of(killed)) == list(range(STEPS))


@pytest.mark.full
def test_what_grpo_saved_is_certified_checkpoint_by_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "out"
    train(out)
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"word{n}"}) + "\n" for n in range(20, 50)))
    (tmp_path / "limits.yaml").write_text("limits: {length: {mean: {rule: words}, at_most: 15, bounds: [0, 16]}}")
    asked = Question(tmp_path / "limits.yaml", tmp_path / "prompts.jsonl", max_tokens=16)
    assert saved_names(out) == ["checkpoint-3", "checkpoint-6"]
    last, _ = certify_saved(out, asked, budget=600)
    assert last.candidate.policy == "checkpoint-6"
    assert last.state == "certified", "trained to say fewer words"
    earlier, _ = certify_saved(out, asked, "checkpoint-3", budget=10)
    assert earlier.candidate.number == 2
    assert earlier.count == 10 or earlier.state != "undecided"


def tear(folder: Path, line: str) -> None:
    with (folder / "limits.jsonl").open("a") as journal:
        journal.write(line)


@pytest.mark.full
def test_the_example_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset

    example, *_ = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    on_cpu = 'output_dir="out", use_cpu=True, bf16=False, max_steps=2, report_to=[], max_completion_length=24,'
    example = example.replace('output_dir="out",', on_cpu)
    monkeypatch.chdir(tmp_path)
    Path("limits.yaml").write_text("limits: {length: {mean: {rule: words}, at_most: 5, bounds: [0, 300]}}\n")
    given = {
        "model": str(save_policy(tmp_path / "model", 0, context=512)),
        "prompts": Dataset.from_dict({"prompt": ["word1", "word2"]}),
        "helpful": helpful,
    }
    exec(example, given)
    assert steps_of(tmp_path / "out")[0]["length"] > 0


def test_a_source_that_fails_for_some_answers_costs_them_the_worst_and_the_log_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from pddpo_ray.integrations.trl import LimitedRewards

    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing.py").write_text(
        "def words(prompt, response, row):\n    count = len(response.split())\n    return 1 / 0 if count % 2 else 0.5\n"
    )
    stated = {"half": {"mean": {"function": "failing:words"}, "at_most": 0.6, "bounds": [0, 3]}}
    limits = LimitedRewards(stated, journal=tmp_path / "limits.jsonl")
    trainer = trainer_of(tmp_path, limits, 2)
    limits.attach(trainer)
    trainer.train()
    steps = [json.loads(line) for line in (tmp_path / "limits.jsonl").read_text().splitlines()]
    seen = [line["observed"]["half"] for line in steps if "observed" in line]
    assert len(seen) == 2
    for step, entry in zip(seen, trainer.state.log_history[:2], strict=True):
        (kind, missing), measured = next(iter(step["missing"].items())), step["n"]
        assert kind == "raised ZeroDivisionError"
        assert missing + measured == 8
        assert step["estimate"] == pytest.approx((0.5 * measured + 3.0 * missing) / 8)
        assert entry["rewards/limit_half/mean"] == pytest.approx(-step["estimate"])
        assert entry["limits/half/missing"] == entry[f"limits/half/missing/{kind}"] == missing / 8
    assert any("which count as the worst" in record.getMessage() for record in caplog.records)


def test_a_trainer_that_is_not_set_up_for_limits_is_refused(tmp_path: Path) -> None:
    limits = limited(tmp_path / "one")
    with pytest.raises(UserError, match='limits need "normalize_then_sum"'):
        limits.attach(trainer_of(tmp_path / "one", limits, 1, multi_objective_aggregation="sum_then_normalize"))
    other = limited(tmp_path / "two")
    trainer = trainer_of(tmp_path / "two", other, 1)
    trainer.reward_func_names.reverse()
    with pytest.raises(UserError, match="last reward functions are not those of the limits"):
        other.attach(trainer)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["rloo", "online_dpo"])
def test_one_score_carries_the_limits_and_goes_on_from_a_checkpoint(kind: str, tmp_path: Path) -> None:
    """RLOO and OnlineDPO: the journal of a run that went on from a checkpoint is that of the unbroken one."""
    whole = tmp_path / "whole"
    limits, trainer = scored(kind, whole)
    limits.attach(trainer)
    trainer.train()
    told = steps_of(whole)
    assert sorted(told) == list(range(4))
    assert told[0]["length"] > 0, "sixteen words against six"
    logged = [entry["limits/length/multiplier"] for entry in trainer.state.log_history[:4]]
    assert logged == pytest.approx([told[step]["length"] for step in range(4)])
    tear(whole, '{"step": 4, "st')
    again, second = scored(kind, whole)
    again.attach(second)
    second.train(resume_from_checkpoint=str(whole / "checkpoint-2"))
    assert steps_of(whole) == told


def scored(kind: str, folder: Path) -> Any:
    """The limits and the trainer of four steps, a checkpoint after two."""
    from datasets import Dataset
    from trl import RLOOConfig, RLOOTrainer
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    from pddpo_ray.integrations.trl import LimitedScore

    limits = LimitedScore(helpful, {"length": LIMITS["length"]}, journal=folder / "limits.jsonl")
    settings: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 8, "max_steps": 4, "learning_rate": 1e-3,
        "save_steps": 2, "logging_steps": 1, "report_to": [], "use_cpu": True, "bf16": False, "disable_tqdm": True,
    }  # fmt: skip
    given = {"processing_class": word_tokenizer(), "reward_funcs": limits.reward_func}
    prompts = Dataset.from_dict({"prompt": [f"word{n} word{n + 1}" for n in range(16)]})
    torch.manual_seed(0)
    model = str(save_policy(folder.parent / "model", 0, context=64))  # both load their reference from a folder
    if kind == "rloo":
        args = RLOOConfig(**settings, num_generations=4, max_completion_length=16)
        return limits, RLOOTrainer(model, args=args, train_dataset=prompts, **given)
    online = OnlineDPOConfig(**settings, max_new_tokens=16, max_length=64)
    return limits, OnlineDPOTrainer(model, args=online, train_dataset=prompts, **given)


def test_a_reward_beside_the_score_is_refused(tmp_path: Path) -> None:
    from pddpo_ray.integrations.trl import LimitedScore

    _, trainer = scored("rloo", tmp_path)
    with pytest.raises(UserError, match="limits weigh the whole reward here"):
        LimitedScore(helpful, {"length": LIMITS["length"]}).attach(trainer)
