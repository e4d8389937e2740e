"""A base in four bits, NF4 of bitsandbytes: adapters are trained over it, and what its numbers stand for is a model.

    nf4-1a2b3c4d5e6f/          the maps of the base in NF4, as transformers stores them, named by the numbers before
    reference-5e6f7a8b9c0d/    whole weights of the same model in the run's type, and nf4_base.json

Rounding to four bits happens once, before version 0. Engines, merged versions, exports and certificates take the
reference's whole weights, which are the numbers that the trainer computes with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.tensors import MadeTensors, stored_mapping, tensors_sha256
from pddpo_ray.storage.whole_files import NF4_BASE, WEIGHTS, write_json


def store_in_nf4(store: ArtifactStore, folder: Path, weights: Mapping[str, Tensor], dtype: str) -> NF4Base:
    """Keeps the checkpoint in `folder`, whose numbers in this type are `weights`, with its linear maps in NF4.

    A base that exists is reused: another processor may round a scale differently, and a resumed run has one base.
    """

    def fill(target: Path) -> None:
        from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GenerationConfig

        number_type = getattr(torch, dtype)
        four_bits = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=number_type,
        )
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=number_type, quantization_config=four_bits, device_map={"": "cpu"}, use_safetensors=True
        )
        model.generation_config = GenerationConfig()
        model.save_pretrained(target, max_shard_size="1000GB")

    path = f"nf4-{tensors_sha256(weights)[:12]}"
    file = store.write_folder(path, fill) / WEIGHTS
    return NF4Base(store, path, tensors_sha256(stored_mapping(file)))


class NF4Base:
    """A model of the store whose linear maps are in NF4; embeddings, head and norms are not."""

    def __init__(self, store: ArtifactStore, path: str, sha256: str) -> None:
        self._store, self._path, self._sha256 = store, path, sha256

    @classmethod
    def of(cls, store: ArtifactStore, reference: Path) -> NF4Base | None:
        """The base noted in a reference's folder; None where its weights are the base."""
        file = reference / NF4_BASE
        return cls(store, **json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None

    def note(self, reference: Path) -> None:
        """Writes what `of` reads into the reference's folder."""
        write_json(reference / NF4_BASE, {"path": self._path, "sha256": self._sha256})

    def model(self, device: torch.device) -> nn.Module:
        """The model on a device. RunError where its file was changed."""
        from bitsandbytes.nn import Linear4bit
        from transformers import AutoModelForCausalLM

        self._store.read_torch(self._path, self._sha256)
        model: nn.Module = AutoModelForCausalLM.from_pretrained(
            self._store.folder(self._path), device_map={"": device}, use_safetensors=True
        )
        for module in model.modules():
            if isinstance(module, Linear4bit):
                # else some processors lay weights out anew for inference, after which no gradient passes them
                module.support_avx512bf16_for_cpu = False
        return model

    def whole_weights(self) -> Mapping[str, Tensor]:
        """The dequantised weights under an ordinary model's names, each made when it is read."""
        parameters = dict(self.model(torch.device("cpu")).named_parameters())
        return MadeTensors(parameters, lambda name: _whole_weights(parameters[name]))


def _whole_weights(parameter: Any) -> Tensor:
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.detach()
    from bitsandbytes.functional import dequantize_4bit

    whole: Tensor = dequantize_4bit(parameter.data, state)
    return whole
