"""LoRA versions: stored as their adapter alone, merged into whole weights on request.

    policy-3-1a2b3c4d5e6f/   adapter/ (peft's layout), configuration, tokenizer, adapter_base.json

Everything that reads a version by `ArtifactStore.folder` finds an ordinary model folder: base and adapter are merged
there, beside the store, and the newest few results are kept. A version's hash is that of the merged weights.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pddpo_ray.errors import UserError, one_line
from pddpo_ray.records import PolicyVersion
from pddpo_ray.storage.tensors import MadeTensors
from pddpo_ray.storage.whole_files import (
    ADAPTER_BASE,
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    KEPT_WHOLE,
    WEIGHTS,
    written_aside,
)

ADAPTER = "adapter"
DOWN, UP = ".lora_A.default.weight", ".lora_B.default.weight"
PREFIX = "base_model.model."
KEPT_S = 600.0
"""Whole weights beyond the newest few are removed when nobody asked for them in these seconds."""


def merged(base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], scale: float) -> Mapping[str, Tensor]:
    """base + scale * up @ down for every adapted matrix, made when asked for. Names and types are the base's."""
    stems = [name.removesuffix(DOWN) for name in adapter if name.endswith(DOWN)]
    stem_of = {f"{stem.removeprefix(PREFIX)}.weight": stem for stem in stems}

    def tensor_of(name: str) -> Tensor:
        weight = base[name]
        if name not in stem_of:
            return weight
        stem = stem_of[name]
        change = scale * (adapter[stem + UP].float() @ adapter[stem + DOWN].float())
        return (weight.float() + change).to(weight.dtype)

    return MadeTensors(base, tensor_of)


def write_adapter(folder: Path, adapter: Mapping[str, Tensor], base: PolicyVersion, scale: float) -> None:
    """The adapter's weights in peft's layout, and what they are to be added to. `folder` is the version's."""
    plain = {name.replace(".default.weight", ".weight"): tensor.contiguous() for name, tensor in adapter.items()}
    (folder / ADAPTER).mkdir(exist_ok=True)
    save_file(plain, folder / ADAPTER / ADAPTER_WEIGHTS)
    base_of = {"path": base.path, "sha256": base.sha256, "scale": scale}
    (folder / ADAPTER_BASE).write_text(json.dumps(base_of), encoding="utf-8")


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """The adapter in a version's folder, with the names that it has inside a model."""
    stored = load_file(folder / ADAPTER / ADAPTER_WEIGHTS)
    return {name.replace(".weight", ".default.weight"): tensor for name, tensor in stored.items()}


def put_on(model: Any, folder: Path) -> Any:
    """A base model with the adapter of a folder merged into it. UserError where it does not fit the model."""
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    try:
        with safe_open(folder / ADAPTER_WEIGHTS, framework="pt") as file:
            stored = set(file.keys())
        peft_model = PeftModel.from_pretrained(model, str(folder))
        expected = set(get_peft_model_state_dict(peft_model, save_embedding_layers=False))
    except Exception as error:
        raise UserError(f"{folder} cannot be put on its base model: {one_line(error)}") from error
    if stored != expected:
        raise UserError(
            f"{folder}: its {len(stored)} tensors are not the {len(expected)} that {ADAPTER_CONFIG} asks for here"
            f" (first {sorted(stored ^ expected)[0]}); save the adapter again, or name its own base"
        )
    return peft_model.merge_and_unload().eval()


def whole_folder(read: Callable[[str, str], Mapping[str, Tensor]], stored: Path, target: Path) -> Path:
    """An ordinary model folder with the whole weights of a version that is stored as an adapter.

    `read` gives the tensors of the base by its path and sha256.
    """
    if not target.exists():
        with written_aside(target) as staging:
            shutil.copytree(stored, staging)
    file = target / WEIGHTS
    if file.exists():
        # The request makes the file count as new, so that it is kept.
        os.utime(file)
        return target
    weights = whole_weights(read, stored)
    with written_aside(file) as staging:
        save_file({name: tensor.detach().contiguous() for name, tensor in weights.items()}, staging)
    _forget_old(target.parent)
    return target


def whole_weights(read: Callable[[str, str], Mapping[str, Tensor]], stored: Path) -> Mapping[str, Tensor]:
    """Base and adapter of a version's folder, merged. `read` as in `whole_folder`."""
    base = json.loads((stored / ADAPTER_BASE).read_text(encoding="utf-8"))
    return merged(read(base["path"], base["sha256"]), read_adapter(stored), base["scale"])


def _forget_old(folder: Path) -> None:
    """Whole weights can be made again at any time; those that nobody asked for in a while go. Small files stay."""
    files = sorted(folder.glob(f"*/{WEIGHTS}"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[KEPT_WHOLE:]:
        if time.time() - file.stat().st_mtime > KEPT_S:
            file.unlink(missing_ok=True)


def switched_off(adapter: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The adapter that changes nothing, and is the same in every process: seeded down maps, up maps zero."""
    generator = torch.Generator().manual_seed(0)
    result = {}
    for name in sorted(adapter):
        shape, dtype = adapter[name].shape, adapter[name].dtype
        if name.endswith(UP):
            result[name] = torch.zeros(shape, dtype=dtype)
        else:
            # uniform within +-1/sqrt(inputs), as a linear map begins
            result[name] = ((2 * torch.rand(shape, generator=generator) - 1) / shape[1] ** 0.5).to(dtype)
    return result
