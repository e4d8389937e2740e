"""TRL's DPOTrainer on an exported world, to be scored by `pddpo score`.

    pddpo world export --seed 0 --to world
    python -m examples.trl_dpo world --data harmless --out trained
    pddpo score trained --world world

`--lora` trains an adapter in place of the whole model.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

FILES = {"helpful": "helpful.jsonl", "harmless": "harmless.jsonl"}


def train(world: Path, out: Path, *, data: str, steps: int, learning_rate: float, lora: bool, seed: int) -> None:
    """DPO from the world's reference on one of its files of pairs; model (or adapter) and tokenizer end up in `out`."""
    reference = world / "reference"
    beta = json.loads((world / "world.json").read_text("utf-8"))["beta"]
    tokenizer = AutoTokenizer.from_pretrained(reference)
    pairs = load_dataset("json", data_files=str(world / FILES[data]), split="train").remove_columns("id")
    with tempfile.TemporaryDirectory(prefix="trl-dpo-") as scratch:
        settings = DPOConfig(
            output_dir=scratch,
            beta=beta,
            max_steps=steps,
            learning_rate=learning_rate,
            per_device_train_batch_size=32,
            seed=seed,
            report_to="none",
            save_strategy="no",
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        )
        given: dict[str, Any] = {"peft_config": LoraConfig(r=8, target_modules="all-linear")} if lora else {}
        model = AutoModelForCausalLM.from_pretrained(reference)
        trainer = DPOTrainer(model, args=settings, train_dataset=pairs, processing_class=tokenizer, **given)
        trainer.train()
        trainer.save_model(str(out))
    tokenizer.save_pretrained(out)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.trl_dpo", description=__doc__.splitlines()[0])
    parser.add_argument("world", type=Path, help="folder that `pddpo world export` wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder of the trained model")
    parser.add_argument("--data", choices=sorted(FILES), default="helpful")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--lora", action="store_true", help="train an adapter")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    train(
        options.world,
        options.out,
        data=options.data,
        steps=options.steps,
        learning_rate=options.learning_rate,
        lora=options.lora,
        seed=options.seed,
    )


if __name__ == "__main__":
    main()
