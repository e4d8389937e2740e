"""LoRA: reference, reward policy and every policy are adapters on one resident base (reference: adapters off).

A version's folder holds the adapter in peft's layout (`adapter/`), from which training continues; who asks the store
for the folder gets one with the whole weights (`adapter_files`). The version's hash is that of the merged weights; an
adapter is trusted because merging it again gives this hash.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from pddpo_ray.errors import RunError, UserError
from pddpo_ray.records import PolicyVersion
from pddpo_ray.storage.adapters import ADAPTER, DOWN, UP, merged, read_adapter, switched_off, write_adapter
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.masters import MOMENTS, write_beside
from pddpo_ray.storage.tensors import tensors_sha256
from pddpo_ray.storage.whole_files import copy_plain_files
from pddpo_ray.training.device import device_for
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.fit import Engine, Tensors
from pddpo_ray.training.local import LocalTrainer, MakeEngine
from pddpo_ray.training.models.nf4 import NF4Base
from pddpo_ray.training.passes.log_probs import ResponseScorer

# which peft imports, and which warns on some CPUs that a kernel for inference is not there
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def add_adapters(model: torch.nn.Module, *, rank: int, alpha: float, dropout: float = 0.0) -> torch.nn.Module:
    """The model with trainable adapters on every linear map but the head; everything else is frozen.

    UserError for GPT-2's kind, which stores its matrices turned: base + up @ down would be another matrix.
    """
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    if any(isinstance(module, Conv1D) for module in model.modules()):
        raise UserError(f"{type(model).__name__} takes no adapters here: set model.parameters.kind=full")

    number_type = next(model.parameters()).dtype
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules="all-linear", bias="none")
    wrapped: torch.nn.Module = get_peft_model(model, config, autocast_adapter_dtype=False)
    # In the model's own type: float32 adapters of a narrow model cast every input and add in float32. peft leaves them
    # so over weights of 4 bits, and where there is no memory.
    for parameter in wrapped.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(number_type)
    return wrapped


def carried_adapter(base: Tensors, plus: Tensors, minus: Tensors, scale: float) -> dict[str, Tensor]:
    """The adapter of the same rank that is nearest to base + scale * (plus - minus), map by map.

    The sum has up to three times the rank; the truncated singular value decomposition of its thin factors is the
    nearest one in the Frobenius norm. It is a start, not a result: the fit starts from here.
    """
    result = {}
    for name in sorted(base):
        if not name.endswith(DOWN):
            continue
        up = name.removesuffix(DOWN) + UP
        rank, dtype = base[name].shape[0], base[name].dtype
        ups = torch.cat([base[up].double(), scale * plus[up].double(), -scale * minus[up].double()], dim=1)
        downs = torch.cat([base[name].double(), plus[name].double(), minus[name].double()], dim=0)
        left, right = torch.linalg.qr(ups), torch.linalg.qr(downs.T)
        inner = torch.linalg.svd(left.R @ right.R.T)
        root = inner.S[:rank].sqrt()
        result[up] = _pad_to_rank((left.Q @ inner.U[:, :rank]) * root, rank, dim=1).to(dtype)
        result[name] = _pad_to_rank(root[:, None] * (inner.Vh[:rank] @ right.Q.T), rank, dim=0).to(dtype)
    return result


def _pad_to_rank(matrix: Tensor, rank: int, dim: int) -> Tensor:
    """Zeros up to the rank, where a map is thinner than that."""
    missing = rank - matrix.shape[dim]
    if missing <= 0:
        return matrix.contiguous()
    shape = list(matrix.shape)
    shape[dim] = missing
    return torch.cat([matrix, matrix.new_zeros(shape)], dim=dim).contiguous()


def load_lora_trainer(
    folder: Path,
    store: ArtifactStore,
    reference: PolicyVersion,
    *,
    rank: int,
    alpha: float,
    dropout: float = 0.0,
    dtype: str = "float32",
    temperature: float = 1.0,
    make_engine: MakeEngine = TorchEngine,
    device: str = "auto",
) -> LoraTrainer:
    """A trainer of adapters on the reference in `folder`, or on the base of 4 bits that it stands for."""
    from transformers import AutoModelForCausalLM

    place, narrow = device_for(device), NF4Base.of(store, folder)
    if narrow is not None:
        base = narrow.model(place)
    else:
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(place)
    adapted = add_adapters(base, rank=rank, alpha=alpha, dropout=dropout)
    scorer = ResponseScorer(adapted, temperature=temperature)
    return LoraTrainer(make_engine(scorer), store, reference, alpha / rank)


class LoraTrainer(LocalTrainer):
    """A LocalTrainer whose versions are adapters. `scale` is alpha / rank."""

    carry = staticmethod(carried_adapter)

    def __init__(
        self,
        engine: Engine,
        store: ArtifactStore,
        reference: PolicyVersion,
        scale: float,
    ) -> None:
        super().__init__(engine, store, reference)
        self._scale = scale
        self._base_weights = store.read_torch(reference.path, reference.sha256)
        self._neutral_adapter = switched_off(dict(engine.each_weight()))
        self._sha256_by_adapter: dict[str, str] = {}

    def _read_weights(self, policy: PolicyVersion) -> Mapping[str, Tensor]:
        """The adapter of a version. Raises RunError where it does not give the version's merged weights."""
        if policy.sha256 == self.reference.sha256:
            return dict(self._neutral_adapter)
        adapter = read_adapter(self.store.stored(policy.path))
        if self._sha256(adapter) != policy.sha256:
            raise RunError(f"the adapter of {policy.name} does not give its weights: {policy.path} was changed")
        return adapter

    def _sha256(self, adapter: Mapping[str, Tensor]) -> str:
        """Hash of the base with this adapter merged, kept by adapter: merging and hashing 7B takes seconds."""
        key = tensors_sha256(adapter)
        if key not in self._sha256_by_adapter:
            self._sha256_by_adapter[key] = tensors_sha256(merged(self._base_weights, adapter, self._scale))
        return self._sha256_by_adapter[key]

    def _write_version(self, name: str, weights: Mapping[str, Tensor], moments: Tensors) -> str:
        sha256 = self._sha256(weights)

        def fill(folder: Path) -> None:
            copy_plain_files(self.store.folder(self.reference.path), folder)
            write_adapter(folder, weights, self.reference, self._scale)
            self.engine.scorer.model.peft_config["default"].save_pretrained(folder / ADAPTER)  # type: ignore[index, union-attr]
            if moments:
                write_beside(folder, MOMENTS, moments)

        self.store.write_folder(f"{name}-{sha256[:12]}", fill)
        return sha256
