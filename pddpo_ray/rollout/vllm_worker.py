"""Methods that vLLM adds to the workers of a run's engines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pddpo_ray.rollout.checkpoint import stored_tensors
from pddpo_ray.rollout.policy_temperature import divide_vllm_logits
from pddpo_ray.storage.tensors import TensorStream

if TYPE_CHECKING:
    import torch


class PolicyWorker:
    """What an engine asks of its workers by name (`collective_rpc`): temperature, tied heads, what was loaded."""

    model_runner: Any
    reload_weights: Any

    def divide_logits(self, temperature: float) -> None:
        """From now on the model's logits are divided by the policy's temperature; call it once."""
        divide_vllm_logits(self.model_runner.model, temperature)

    def take_heads_over(self) -> None:
        """Have tied output heads compute with the embeddings of now; call it after a delivery in place.

        On a CPU vLLM 0.32 packs a copy of every matrix when it is loaded. A head that is tied to the embeddings is
        loaded with a model that starts, but a delivery in place loads the embeddings alone: the head keeps the copy of
        the old.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        for module in self.model_runner.model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)

    def reload_version(self, folder: str) -> tuple[str, int]:
        """Load the weights in a folder in place. -> hash and number of the tensors as they were consumed"""
        self._delivered = TensorStream()
        self.reload_weights(weights_iterator=self._seen(stored_tensors(Path(folder))))
        return self._delivered.sha256(), self._delivered.count

    def watch_delivery(self) -> None:
        """From now on every tensor that the model loads enters a hash. vLLM gives them in the sender's order."""
        model = self.model_runner.model
        self._delivered = TensorStream()
        load = type(model).load_weights

        def watched(weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
            return load(model, self._seen(weights))

        model.load_weights = watched

    def delivered(self) -> tuple[str, int]:
        """(hash, number of tensors) of what was loaded since; ends the watch."""
        del self.model_runner.model.load_weights
        return self._delivered.sha256(), self._delivered.count

    def _seen(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterable[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            self._delivered.add(name, tensor)
            yield name, tensor


WORKER = {"worker_extension_cls": f"{PolicyWorker.__module__}.{PolicyWorker.__qualname__}"}
"""The argument with which vLLM takes them."""
