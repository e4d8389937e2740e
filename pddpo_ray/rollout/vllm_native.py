"""vLLM engines that take weights by vLLM's own means: adapters as files, whole weights over NCCL or CUDA IPC.

Both are checked like an engine that reads the artifact store: names, shapes and count are compared before, the
hash is taken inside the engine's process over what it consumed, and the canaries come after.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pddpo_ray.config import LoraParameters
from pddpo_ray.errors import RunError
from pddpo_ray.records import Delivery, PolicyVersion
from pddpo_ray.rollout.checkpoint import check_tokenizer, check_version, stored_shapes
from pddpo_ray.rollout.vllm_engine import NO_VERSION, VllmEngine, VllmSettings
from pddpo_ray.rollout.vllm_internals import adapter_request
from pddpo_ray.storage.adapters import ADAPTER, merged, read_adapter
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.tensors import stored_mapping, tensors_sha256
from pddpo_ray.storage.whole_files import ADAPTER_WEIGHTS, WEIGHTS

if TYPE_CHECKING:
    import torch

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks for which vLLM can reserve room."""
NOT_ADAPTED = {"lm_head", "embed_out", "embed_tokens", "wte", "wpe"}
"""Matrices that peft's `all-linear` leaves out: output heads and embeddings."""


class TransferVllmEngine(VllmEngine):
    """Whole weights through vLLM's weight transfer.

    engine.expect(policy)                      # names and shapes compared, the witness is on
    engine.llm.init_weight_transfer_engine(...)    # called by the trainer's rank 0, once
    engine.llm.start_weight_update() ... finish_weight_update()     # by rank 0, while it sends
    engine.delivered(policy)                   # hash and version
    """

    def __init__(
        self, name: str, model: Path, store: ArtifactStore, settings: VllmSettings, way: Literal["nccl", "ipc"]
    ) -> None:
        self._transfer_backend = way
        self._start_time = 0.0
        super().__init__(name, model, store, settings)

    def start_options(self) -> dict[str, Any]:
        return {**super().start_options(), "weight_transfer_config": {"backend": self._transfer_backend}}

    def deliver(self, policy: PolicyVersion) -> Delivery:
        raise RunError(f"engine {self.name} is sent its weights by the trainer; it does not fetch {policy.name} itself")

    def expect(self, policy: PolicyVersion) -> None:
        """Compare what will be sent with the model, and hash what arrives. Raises RunError where it does not fit."""
        self._start_time = time.monotonic()
        folder = self._store.folder(policy.path)
        self._version = NO_VERSION
        check_version(self._model_tensors, self.tokenizer, folder, engine=self.name, version=policy.number)
        self.llm.collective_rpc("watch_delivery")

    def delivered(self, policy: PolicyVersion) -> Delivery:
        """What arrived, as the first worker saw it; all workers see all tensors."""
        sha256, count = self.llm.collective_rpc("delivered")[0]
        return self._adopt_version(policy, sha256, count, self._start_time)


class AdapterVllmEngine(VllmEngine):
    """Every version is an adapter on one resident base (reference: adapters off). Only the adapter's file is read.

    The base is loaded at the start: the model's folder must hold the reference's weights by then. A version's hash is
    that of its merged weights: the engine merges base and adapter once more, outside the model, and states the hash of
    the result; the canaries then show that the engine computes with the same.
    """

    def __init__(
        self, name: str, model: Path, store: ArtifactStore, settings: VllmSettings, parameters: LoraParameters
    ) -> None:
        self._parameters = parameters
        self._base = Path(model)
        self._adapter: Any = None
        super().__init__(name, model, store, settings)

    def start_options(self) -> dict[str, Any]:
        adapters = adapter_options(self._base, self._parameters.rank)
        return {**super().start_options(), "load_format": "auto", "max_loras": 1, **adapters}

    def deliver(self, policy: PolicyVersion) -> Delivery:
        began = time.monotonic()
        folder = self._store.stored(policy.path)
        self._version = NO_VERSION
        check_tokenizer(self.tokenizer, folder, engine=self.name, version=policy.number)
        weights = self._weights(folder, policy)
        # A new name and number for every version: vLLM keeps adapters and prefixes by them.
        self._adapter = adapter_request(policy.name, policy.number, folder / ADAPTER) if policy.number else None
        return self._adopt_version(policy, tensors_sha256(weights), len(weights), began)

    def _weights(self, folder: Path, policy: PolicyVersion) -> Mapping[str, torch.Tensor]:
        """The merged weights of a version; those of the base for the reference."""
        base = stored_mapping(self._base / WEIGHTS)
        if policy.number == 0:
            return base
        if not (folder / ADAPTER / ADAPTER_WEIGHTS).is_file():
            raise RunError(f"engine {self.name} takes adapters, but {policy.name} has none in {folder / ADAPTER}")
        return merged(base, read_adapter(folder), self._parameters.alpha / self._parameters.rank)

    def _generate(self, requests: list[Any], parameters: Any) -> Any:
        return self.llm.generate(requests, parameters, use_tqdm=False, lora_request=self._adapter)


def adapter_options(model: Path, rank: int) -> dict[str, Any]:
    """How an engine is started that takes adapters of this rank on every linear map of the model in this folder.

    The output head stays plain: it is never adapted, and behind an adapted one vLLM 0.32 cannot score prompts (it has
    one line per request there, not one per token), which is how versions are verified.
    """
    matrices = [name for name, shape in stored_shapes(model).items() if len(shape) == 2 and name.endswith(".weight")]
    linear = {name.split(".")[-2] for name in matrices} - NOT_ADAPTED
    return {"enable_lora": True, "max_lora_rank": reserved_rank(rank), "lora_target_modules": sorted(linear)}


def reserved_rank(rank: int) -> int:
    """The smallest rank that vLLM reserves room for and that holds this one."""
    fitting = [reserved for reserved in RANKS if reserved >= rank]
    if not fitting:
        raise RunError(f"model.parameters.rank={rank} is above {RANKS[-1]}, the largest that vLLM takes")
    return fitting[0]
