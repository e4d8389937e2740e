"""Float32 masters of a version that is published in bfloat16: what training goes on from.

    policy-3-1a2b3c4d5e6f/   model.safetensors (bfloat16), masters/model.safetensors (float32), configuration, tokenizer

A version is what its policy computes with: the masters rounded to the nearest bfloat16 (ties to even). It is what is
sampled, scored, delivered and hashed. A fit's small steps would be lost if the next one began from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pddpo_ray.errors import RunError
from pddpo_ray.records import PolicyVersion
from pddpo_ray.storage.artifacts import tensors_sha256
from pddpo_ray.storage.whole_files import WEIGHTS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MASTERS = "masters"


def published(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights in the type in which a version is stored; to a narrower one they are rounded to the nearest."""
    return {name: tensor.to(dtype) for name, tensor in weights.items()}


def write_masters(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Store the float32 weights in a version's folder."""
    from safetensors.torch import save_file

    (folder / MASTERS).mkdir()
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / MASTERS / WEIGHTS)


def read_masters(folder: Path, policy: PolicyVersion, dtype: torch.dtype) -> dict[str, Tensor] | None:
    """The masters of a version, None where it has none. Raises RunError unless the version is their rounding."""
    from safetensors.torch import load_file

    if not (folder / MASTERS / WEIGHTS).is_file():
        return None
    masters = load_file(folder / MASTERS / WEIGHTS)
    if tensors_sha256(published(masters, dtype).items()) != policy.sha256:
        raise RunError(f"the masters of {policy.name} do not round to its weights: {policy.path} was changed")
    return masters
