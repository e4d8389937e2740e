"""TRL's GRPOTrainer under two limits: our controller with one gain, and eight fixed weights.

    python -m lab.studies.limits_in_trl.run  # three settings, the controller and fixed weights; JSON lines
    python -m lab.studies.limits_in_trl.run --settings 0 --fixed none
    python -m lab.studies.limits_in_trl.run --model smollm2 --settings 3 --fixed none --steps 160

A tiny transformer with a vocabulary of 84 words; the reward wants many words and two of them above all, which is what
the limits hold down: the mean number of words, and the share of answers with one of the two. SmolLM2-135M-Instruct
answers questions of daily life in bfloat16 with adapters on its upper layers; its two words are `you` and `your`. A
finished run in --out is not made again. Printed: means over the last third of the steps.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from pddpo_ray.integrations.trl import LimitedRewards
from pddpo_ray.training.models.pretrained import fetch
from tests.support.tiny_language_model import tiny_llama, word_tokenizer

SETTINGS = ((6.0, 0.20), (10.0, 0.05), (3.0, 0.40), (6.0, 0.20))
"""Most words on average, and the largest share of answers with one of the two words. The last one is SmolLM2's."""
FIXED = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 4.0)
"""Weights of both costs."""
STEPS = 300
NEAR = 0.05
"""A limit that binds is met where the mean is no further from it, as a share of it."""
QUESTIONS = (
    "How do I clean a burnt pan?", "What helps against a cold?", "How can I sleep better?", "What do I eat at noon?",
    "How do I learn to swim?", "What is good for the back?", "How do I save money?", "Where should I look for a job?",
    "How do I keep bread fresh?", "What can I do when it rains?", "How do I wash wool?", "What helps a plant to grow?",
    "How do I find new friends?", "What should I read next?", "How do I fix a bicycle tyre?", "How can I run faster?",
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A model, what it is asked, and the size of a step."""

    load: Any
    """Seed -> model and tokenizer."""
    prompts: Sequence[str]
    two: tuple[str, str]
    tokens: int
    answers: int
    """In a step, in groups of 8."""
    settings: dict[str, Any] = field(default_factory=dict)
    adapters: LoraConfig | None = None


def smollm2(seed: int) -> tuple[Any, Any]:
    folder = fetch("smollm2")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16), AutoTokenizer.from_pretrained(folder)


TASKS = {
    "tiny": Task(
        lambda seed: (tiny_llama(seed, context=64), word_tokenizer()),
        [f"word{n} word{n + 1}" for n in range(64)],
        ("word7", "word8"),
        tokens=16,
        answers=64,
        settings={"bf16": False, "learning_rate": 2e-3},
    ),
    "smollm2": Task(
        smollm2,
        [
            f"<|im_start|>user\n{question} Answer in at most five words.<|im_end|>\n<|im_start|>assistant\n"
            for question in QUESTIONS
        ],
        ("you", "your"),
        tokens=14,
        answers=24,
        # at 2e-3 the policy collapsed to one answer by step 75
        settings={"bf16": True, "learning_rate": 5e-4, "gradient_checkpointing": False},
        adapters=LoraConfig(
            r=16, lora_alpha=32, layers_to_transform=list(range(20, 30)), layers_pattern="layers",
            target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM",
        ),
    ),
}  # fmt: skip


def helpful(two: tuple[str, str], prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """Words, and ten more for one of the two."""
    return [len(text.split()) + 10.0 * bool(set(two) & set(text.split())) for text in completions]


def train(
    folder: Path, task: Task, setting: tuple[float, float], weight: float | None, seed: int, steps: int
) -> list[list[float]]:
    """Mean words and share of the two in each step. `weight`: of both costs; None: the controller's. -> [steps, 2]"""
    folder.mkdir(parents=True)
    (folder / "words.txt").write_text("".join(f"\\b{word}\\b\n" for word in task.two), encoding="utf-8")
    stated = {
        "words": {"mean": {"rule": "words"}, "at_most": setting[0], "bounds": [0, task.tokens]},
        "two": {"rate": {"regex": str(folder.resolve() / "words.txt")}, "at_most": setting[1]},
    }
    limits = LimitedRewards(stated, journal=folder / "limits.jsonl")
    settings = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=task.answers,
        num_generations=8,
        max_completion_length=task.tokens,
        max_steps=steps,
        lr_scheduler_type="constant",
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=seed,
        reward_weights=[1.0, *[weight or 0.0] * len(stated)],
        multi_objective_aggregation="normalize_then_sum",
        **task.settings,
    )
    torch.manual_seed(seed)
    model, tokenizer = task.load(seed)
    own = partial(helpful, task.two)
    own.__name__ = "helpful"  # type: ignore[attr-defined]
    trainer = GRPOTrainer(
        model,
        reward_funcs=[own, *limits.reward_funcs],
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": list(task.prompts)}),
        processing_class=tokenizer,
        peft_config=task.adapters,
    )
    if weight is None:
        limits.attach(trainer)
    trainer.train()
    keys = [f"rewards/limit_{name}/mean" for name in stated]
    return [[-entry[key] for key in keys] for entry in trainer.state.log_history if keys[0] in entry]


def finished(out: Path, model: str, number: int, weight: float | None, seed: int, steps: int) -> list[list[float]]:
    """The steps of a run; it is made where `out` does not hold it."""
    who = "controller" if weight is None else f"{weight:g}"
    name = f"{'' if model == 'tiny' else f'{model}-'}setting-{number}-{who}-seed-{seed}-steps-{steps}"
    file = out / f"{name}.json"
    if not file.is_file():
        shutil.rmtree(out / name, ignore_errors=True)
        file.write_text(
            json.dumps(train(out / name, TASKS[model], SETTINGS[number], weight, seed, steps)), encoding="utf-8"
        )
    return [[float(one) for one in step] for step in json.loads(file.read_text(encoding="utf-8"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(TASKS), default="tiny")
    parser.add_argument("--settings", default="0,1,2")
    parser.add_argument("--fixed", default=",".join(map(str, FIXED)), help="weights, or none")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=Path("runs/limits-in-trl"))
    given = parser.parse_args()
    weights = [None, *([] if given.fixed == "none" else [float(one) for one in given.fixed.split(",")])]
    print("| at most: words, share | seed | weights | words, last third | share, last third | both within 5 % |")
    print("|---|---|---|---|---|---|", flush=True)
    for number, seed, weight in product(map(int, given.settings.split(",")), map(int, given.seeds.split(",")), weights):
        steps = finished(given.out, given.model, number, weight, seed, given.steps)
        late = np.mean(steps[-len(steps) // 3 :], axis=0)
        setting = SETTINGS[number]
        held = "yes" if bool((np.abs(late / setting - 1.0) <= NEAR).all()) else "no"
        stated, who = f"{setting[0]:g}, {100 * setting[1]:g} %", "the controller's" if weight is None else f"{weight:g}"
        print(f"| {stated} | {seed} | {who} | {late[0]:.2f} | {100 * late[1]:.1f} % | {held} |", flush=True)


if __name__ == "__main__":
    main()
