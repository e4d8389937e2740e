"""TRL's GRPOTrainer under two limits: our controller with one gain, and eight fixed weights.

    python -m bench.limits_in_trl                      # three settings, the controller and fixed weights; JSON lines
    python -m bench.limits_in_trl --settings 0 --fixed none

A tiny transformer with a vocabulary of 84 words; the reward wants many words and two of them above all, which is what
the limits hold down: the mean number of words, and the share of answers with one of the two. A finished run in --out is
not made again. Printed: means over the last third of the steps.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from pddpo_ray.integrations.trl import LimitedRewards
from tests.tiny_language_model import tiny_llama, word_tokenizer

SETTINGS = ((6.0, 0.20), (10.0, 0.05), (3.0, 0.40))
"""Most words on average, and the largest share of answers with `word7` or `word8`."""
FIXED = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 4.0)
"""Weights of both costs."""
STEPS, PROMPTS, GROUP, TOKENS = 300, 8, 8, 16
NEAR = 0.05
"""A limit that binds is met where the mean is no further from it, as a share of it."""


def helpful(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """Words, and ten more for one of the two."""
    return [len(text.split()) + 10.0 * bool({"word7", "word8"} & set(text.split())) for text in completions]


def train(folder: Path, setting: tuple[float, float], weight: float | None, seed: int, steps: int) -> list[list[float]]:
    """Mean words and share of the two in each step. `weight`: of both costs; None: the controller's. -> [steps, 2]"""
    folder.mkdir(parents=True)
    (folder / "words.txt").write_text("word7\\b\nword8\\b\n", encoding="utf-8")
    stated = {
        "words": {"mean": {"rule": "words"}, "at_most": setting[0], "bounds": [0, TOKENS]},
        "two": {"rate": {"regex": str(folder.resolve() / "words.txt")}, "at_most": setting[1]},
    }
    limits = LimitedRewards(stated, journal=folder / "limits.jsonl")
    settings = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=PROMPTS * GROUP,
        num_generations=GROUP,
        max_completion_length=TOKENS,
        max_steps=steps,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        seed=seed,
        reward_weights=[1.0, *[weight or 0.0] * len(stated)],
        multi_objective_aggregation="normalize_then_sum",
    )
    torch.manual_seed(seed)
    trainer = GRPOTrainer(
        tiny_llama(seed, context=64),
        reward_funcs=[helpful, *limits.reward_funcs],
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": [f"word{n} word{n + 1}" for n in range(64)]}),
        processing_class=word_tokenizer(),
    )
    if weight is None:
        limits.attach(trainer)
    trainer.train()
    keys = [f"rewards/limit_{name}/mean" for name in stated]
    return [[-entry[key] for key in keys] for entry in trainer.state.log_history if keys[0] in entry]


def finished(out: Path, number: int, weight: float | None, seed: int, steps: int) -> list[list[float]]:
    """The steps of a run; it is made where `out` does not hold it."""
    name = f"setting-{number}-{'controller' if weight is None else f'{weight:g}'}-seed-{seed}-steps-{steps}"
    file = out / f"{name}.json"
    if not file.is_file():
        shutil.rmtree(out / name, ignore_errors=True)
        file.write_text(json.dumps(train(out / name, SETTINGS[number], weight, seed, steps)), encoding="utf-8")
    return [[float(one) for one in step] for step in json.loads(file.read_text(encoding="utf-8"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        steps = finished(given.out, number, weight, seed, given.steps)
        late = np.mean(steps[-len(steps) // 3 :], axis=0)
        setting = SETTINGS[number]
        held = "yes" if bool((np.abs(late / setting - 1.0) <= NEAR).all()) else "no"
        stated, who = f"{setting[0]:g}, {100 * setting[1]:g} %", "the controller's" if weight is None else f"{weight:g}"
        print(f"| {stated} | {seed} | {who} | {late[0]:.2f} | {100 * late[1]:.1f} % | {held} |", flush=True)


if __name__ == "__main__":
    main()
