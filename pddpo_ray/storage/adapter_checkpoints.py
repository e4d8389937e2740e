"""An adapter alone as a whole model: put on the base that it names and merged, once, in the cache."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.storage.adapters import ADAPTER_WEIGHTS
from pddpo_ray.storage.cache import cache_folder, made_once
from pddpo_ray.storage.checkpoints import (
    ADAPTER_CONFIG,
    checkpoint_folder,
    checkpoint_problem,
    files_now,
    has_tokenizer,
)


def merged_checkpoint(folder: Path) -> Path:
    """The folder of the merged model in float32, with the tokenizer beside the adapter, else the base's.

    UserError where the base is not there, or does not fit.
    """
    base = checkpoint_folder(stated_base(folder))
    if problem := checkpoint_problem(base):
        raise UserError(f"{folder} is an adapter, and its base {base} {problem}")
    identity = json.dumps([str(folder.absolute()), files_now(folder), str(base.absolute()), files_now(base)])
    name = f"merged-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    return made_once(cache_folder() / name, lambda staging: _write(folder, base, staging))


def stated_base(folder: Path) -> str:
    """The base that an adapter names: a folder, also one beside it, or a hub name. UserError where it names none."""
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise UserError(f"{folder} has no {ADAPTER_WEIGHTS}; save the adapter there with save_pretrained (safetensors)")
    try:
        named = json.loads((folder / ADAPTER_CONFIG).read_text("utf-8")).get("base_model_name_or_path")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{folder / ADAPTER_CONFIG} is damaged ({error}); save the adapter again") from error
    if not named:
        raise UserError(f"{folder} names no base model: write it into {ADAPTER_CONFIG} as base_model_name_or_path")
    return str(folder / named) if (folder / named).is_dir() else str(named)


def put_on(model: Any, folder: Path) -> Any:
    """A base model with the adapter of a folder merged into it. UserError where the adapter is another one's."""
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    try:
        with safe_open(folder / ADAPTER_WEIGHTS, framework="pt") as file:
            stored = set(file.keys())
        wrapped = PeftModel.from_pretrained(model, str(folder))
        expected = set(get_peft_model_state_dict(wrapped, save_embedding_layers=False))
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(f"{folder} cannot be put on its base model: {reason}") from error
    if stored != expected:
        raise UserError(
            f"{folder}: its {len(stored)} tensors are not the {len(expected)} that {ADAPTER_CONFIG} asks for here"
            f" (first {sorted(stored ^ expected)[0]}); save the adapter again, or name its own base"
        )
    return wrapped.merge_and_unload().eval()


def _write(folder: Path, base: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from pddpo_ray.text.renderer import stop_ids

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, use_safetensors=True)
    tokenizer = AutoTokenizer.from_pretrained(folder if has_tokenizer(folder) else base)
    merged = put_on(model, folder)
    # where answers end, and nothing that bends how they are drawn
    merged.generation_config = GenerationConfig(eos_token_id=list(stop_ids(tokenizer, base)))
    merged.save_pretrained(target)
    tokenizer.save_pretrained(target)
