"""Weights of two versions mixed into a third (P-SACPO's linear merging)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp

from pddpo_ray.algorithms.stages import Parts
from pddpo_ray.backends.backends import Backends
from pddpo_ray.config import Config
from pddpo_ray.journal import Journal
from pddpo_ray.records import Array, PolicyVersion
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.whole_files import WEIGHTS
from pddpo_ray.theory.multipliers.dual import LimitState

if TYPE_CHECKING:
    import torch

TABLE = "log_probs"


class Merging:
    """The part that mixes the weights of two versions."""

    def __init__(self, journal: Journal, store: ArtifactStore) -> None:
        self._journal, self._store = journal, store

    def merged(self, base: PolicyVersion, other: PolicyVersion, share: float) -> PolicyVersion:
        """The round's policy (1 - share) base + share other, weight by weight.

        To first order it is the policy at `share` times the other's multiplier, and that is what is journalled.
        """

        def apply() -> int:
            known = {entry.version.number: entry for entry in self._journal.versions()}
            name = f"merged-{self._journal.round}"
            version = merge_versions(self._store, base, other, share, max(known) + 1, name)
            whole = known[other.number].multiplier
            multiplier = None if whole is None else share * whole
            self._journal.add_version(version, "cost", base=base.number, multiplier=multiplier)
            return version.number

        number = self._journal.once("merge", apply)
        return next(entry.version for entry in self._journal.versions() if entry.version.number == number)


def merging_of(config: Config, backends: Backends, parts: Parts, first: LimitState) -> Merging:
    """The merging part of a run."""
    return Merging(parts.journal, backends.store)


def merge_versions(
    store: ArtifactStore, base: PolicyVersion, other: PolicyVersion, share: float, number: int, name: str
) -> PolicyVersion:
    """(1 - share) base + share other, stored. A table's logits are merged, which is its log-probabilities normalised.

    Both versions are held on the CPU while it works. Configuration and tokenizer are those of the base.
    """
    first, second = store.read_torch(base.path, base.sha256), store.read_torch(other.path, other.sha256)
    source = store.folder(base.path)

    def fill(folder: Path) -> None:
        for file in source.iterdir():
            if file.is_file() and file.name != WEIGHTS:
                shutil.copyfile(file, folder / file.name)

    if TABLE in first:
        arrays = [{key: tensor.numpy() for key, tensor in version.items()} for version in (first, second)]
        path, sha256 = store.write_tensors(name, merged_tables(arrays[0], arrays[1], share))
    else:
        path, sha256 = store.write_tensors(name, merged_weights(first, second, share), fill=fill)
    return PolicyVersion(number, name, sha256, path)


def merged_weights(
    base: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor], share: float
) -> dict[str, torch.Tensor]:
    """Tensor by tensor in float32 at least, returned in the base's type."""
    return {
        name: ((1.0 - share) * _wide(tensor) + share * _wide(other[name])).to(tensor.dtype)
        for name, tensor in base.items()
    }


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.element_size() == 8 else tensor.float()


def merged_tables(base: Mapping[str, Array], other: Mapping[str, Array], share: float) -> dict[str, Array]:
    """Normalised mixture of logits, and the other's scores at their share. [X, Y] each"""
    logits = (1.0 - share) * base[TABLE] + share * other[TABLE]
    return {
        TABLE: np.asarray(logits - logsumexp(logits, axis=1, keepdims=True)),
        "scores": share * other["scores"],
    }
