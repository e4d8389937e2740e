"""What the next fit of a stage starts from, beside a version's weights: float32 masters of a version that is published
in bfloat16, and AdamW's moments where they are carried from round to round.

    policy-3-1a2b3c4d5e6f/   model.safetensors (bfloat16), configuration, tokenizer,
                             masters/model.safetensors, moments/model.safetensors (float32)

A version is what its policy computes with: the masters rounded to the nearest bfloat16 (ties to even). It is what is
sampled, scored, delivered and hashed. A fit's small steps would be lost if the next one began from there.

Masters take twice the space of their version, moments four times. A fit begins from its stage's version of the round
before, which keeps both for that; those of older rounds are removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pddpo_ray.errors import RunError
from pddpo_ray.records import PolicyVersion
from pddpo_ray.storage.tensors import MadeTensors, stored_mapping, tensors_sha256
from pddpo_ray.storage.whole_files import WEIGHTS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MASTERS, MOMENTS = "masters", "moments"
VERSION = re.compile(r"(?P<stage>.+?)-(?P<round>\d+)(?P<link>(-\d+)?)-[0-9a-f]{12}")
"""Folder of a version: reward-3-HASH, policy-3-HASH, with several limits policy-3-1-HASH."""


def published(weights: Mapping[str, Tensor], dtype: torch.dtype) -> Mapping[str, Tensor]:
    """The weights in the type in which a version is stored; to a narrower one they are rounded to the nearest."""
    return MadeTensors(weights, lambda name: weights[name].to(dtype))


def write_beside(folder: Path, kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Store masters or moments in a version's folder."""
    from safetensors.torch import save_file

    (folder / kind).mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / kind / WEIGHTS)


def forget_older(version: Path) -> None:
    """Removes the stage's masters and moments of rounds before the last; their empty folders stay as a mark.

    `version` is the folder of one that was just fitted.
    """
    own_match = VERSION.fullmatch(version.name)
    if own_match is None:
        return
    for folder in (*version.parent.glob(f"*/{MASTERS}"), *version.parent.glob(f"*/{MOMENTS}")):
        other = VERSION.fullmatch(folder.parent.name)
        if other is None or (other["stage"], other["link"]) != (own_match["stage"], own_match["link"]):
            continue
        if int(other["round"]) < int(own_match["round"]) - 1:
            (folder / WEIGHTS).unlink(missing_ok=True)


def check_startable(folder: Path, policy: PolicyVersion) -> None:
    """RunError for a version whose masters were removed: a fit from its rounded weights would be another fit."""
    if (folder / MASTERS).is_dir() and not (folder / MASTERS / WEIGHTS).is_file():
        raise RunError(f"the float32 masters of {policy.name} were removed with older versions': no fit starts from it")


def read_masters(folder: Path, policy: PolicyVersion, dtype: torch.dtype) -> Mapping[str, Tensor] | None:
    """The masters of a version, None where it has none. Raises RunError unless the version is their rounding."""
    if not (folder / MASTERS / WEIGHTS).is_file():
        return None
    masters = stored_mapping(folder / MASTERS / WEIGHTS)
    if tensors_sha256(published(masters, dtype)) != policy.sha256:
        raise RunError(f"the masters of {policy.name} do not round to its weights: {policy.path} was changed")
    return masters


def read_moments(folder: Path, policy: PolicyVersion) -> Mapping[str, Tensor]:
    """Moments with which a version's fit ended. Raises RunError where it has none."""
    if not (folder / MOMENTS / WEIGHTS).is_file():
        raise RunError(f"the moments of {policy.name} are not there: no fit can begin with them")
    return stored_mapping(folder / MOMENTS / WEIGHTS)
