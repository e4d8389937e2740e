"""TRL's GRPOTrainer with limits on a tiny model. As a program: one run of it in a process of its own, to be killed.

TRL warns of vLLM's version when it is imported: it is within functions, since a test's filters hold while it runs.

python -m tests.support.limited_trl FOLDER --hold 5      # waits for ever within step 5, and says so with a file
python -m tests.support.limited_trl FOLDER               # continues from the folder's last checkpoint
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.tiny_language_model import tiny_llama, word_tokenizer

STEPS, SAVED_EVERY = 6, 3
LIMITS: dict[str, Any] = {
    "length": {"mean": {"rule": "words"}, "at_most": 6, "bounds": [0, 16]},
    "seven": {"rate": {"regex": "words.txt"}, "at_most": "20 %"},
}


def helpful(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    return [float(len(completion.split())) for completion in completions]


def trainer_of(folder: Path, limits: Any, steps: int, *, reward: Any = helpful, **other: Any) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 16,
        "max_steps": steps,
        "learning_rate": 1e-2,
        "save_steps": SAVED_EVERY,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "multi_objective_aggregation": "normalize_then_sum",
        **other,
    }
    prompts = Dataset.from_dict({"prompt": [f"word{n} word{n + 1}" for n in range(16)]})
    torch.manual_seed(0)
    return GRPOTrainer(
        tiny_llama(0, context=64),
        reward_funcs=[reward, *limits.reward_funcs],
        args=GRPOConfig(**settings),
        train_dataset=prompts,
        processing_class=word_tokenizer(),
    )


def limited(folder: Path) -> Any:
    from pddpo_ray.integrations.trl import LimitedRewards

    folder.mkdir(exist_ok=True)
    words = folder.parent / "words.txt"  # one path for all runs of a test: it stands in the journal's mark
    words.write_text("word7\\b\nword8\\b\n")
    limits = {**LIMITS, "seven": {**LIMITS["seven"], "rate": {"regex": str(words)}}}
    return LimitedRewards(limits, journal=folder / "limits.jsonl")


def steps_of(folder: Path) -> dict[int, dict[str, float]]:
    """Multipliers of the last time that each step was taken."""
    lines = [json.loads(line) for line in (folder / "limits.jsonl").read_text().splitlines()]
    return {
        line["step"]: {name: state["multiplier"] for name, state in line["observed"].items()}
        for line in lines
        if "step" in line
    }


def train(folder: Path, *, hold: int | None = None) -> None:
    """A whole run, or what a folder's last checkpoint lacks of one; with `hold`, it never comes past this step."""
    from transformers.trainer_utils import get_last_checkpoint

    limits = limited(folder)
    trainer = trainer_of(folder, limits, STEPS, reward=helpful if hold is None else _held(hold, folder / "held"))
    limits.attach(trainer)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)))


def _held(step: int, sign: Path) -> Callable[..., list[float]]:
    calls = iter(range(step + 1))

    def helpful_until(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        if next(calls) == step:
            sign.touch()
            threading.Event().wait()
        return helpful(prompts, completions, **columns)

    return helpful_until


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hold", type=int)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    train(asked.folder, hold=asked.hold)
