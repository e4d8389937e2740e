"""All that reaches past vLLM's public names, and what each private name is for.

Other files of the product import public names alone (`from vllm import ...`): a test holds that, and another that the
installed vLLM has every name used here. Functions import vLLM when they are called; in a process that holds an engine
that is after `prepare_process`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pddpo_ray.errors import RunError
from pddpo_ray.rollout.checkpoint import stored_tensors
from pddpo_ray.rollout.policy_temperature import dividing
from pddpo_ray.storage.tensors import TensorStream

if TYPE_CHECKING:
    import torch


class PolicyWorker:
    """What an engine asks of its workers by name (`collective_rpc`): temperature, tied heads, what was loaded."""

    model_runner: Any
    reload_weights: Any

    def divide_logits(self, temperature: float) -> None:
        """From now on the logits that all samples and log-probabilities come from are divided by it; call it once."""
        model = self.model_runner.model
        for name in ("compute_logits", "compute_logits_local"):
            # The second one is how a sampler that is split over devices asks.
            compute = getattr(model, name, None)
            if temperature != 1.0 and compute is not None:
                setattr(model, name, dividing(compute, temperature))

    def take_heads_over(self) -> None:
        """Have tied output heads compute with the current embeddings; call it after a delivery in place.

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
        self._loaded_tensors = TensorStream()
        self.reload_weights(weights_iterator=self._record_tensors(stored_tensors(Path(folder))))
        return self._loaded_tensors.sha256(), self._loaded_tensors.count

    def watch_delivery(self) -> None:
        """From now on every tensor that the model loads enters a hash. vLLM gives them in the sender's order."""
        model = self.model_runner.model
        self._loaded_tensors = TensorStream()
        load = type(model).load_weights

        def watched(weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
            return load(model, self._record_tensors(weights))

        model.load_weights = watched

    def delivered(self) -> tuple[str, int]:
        """(hash, number of tensors) of what was loaded since; ends the watch."""
        del self.model_runner.model.load_weights
        return self._loaded_tensors.sha256(), self._loaded_tensors.count

    def _record_tensors(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterable[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            self._loaded_tensors.add(name, tensor)
            yield name, tensor


WORKER = {"worker_extension_cls": f"{PolicyWorker.__module__}.{PolicyWorker.__qualname__}"}
"""The argument by which vLLM loads `PolicyWorker`."""


def end_engine(llm: Any) -> None:
    """Release the memory of a `vllm.LLM`, which has no method for it."""
    llm.llm_engine.engine_core.shutdown()


def adapter_request(name: str, number: int, folder: Path) -> Any:
    """The adapter in a folder, as `generate` takes it."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, number, str(folder))


def weight_source(tensors: Mapping[str, torch.Tensor], device: torch.device) -> Any:
    """What a trainer sends, in order of names: the engine's witness hashes it. Tensors are read one at a time."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Tensors(WeightSource):
        def metadata(self) -> list[Any]:
            return [ParamMeta(name, tensors[name].dtype, tuple(tensors[name].shape)) for name in sorted(tensors)]

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            for name in sorted(tensors):
                yield name, tensors[name].to(device)

    return Tensors()


def weight_sender(engine: Any, source: Any, rank: int, meeting: tuple[str, int] | None, processes: int) -> Any:
    """A trainer's connection to an engine's actor: NCCL for processes that meet at address and port, or CUDA IPC."""
    from vllm.distributed.weight_transfer.clients import RayVLLMWeightSyncClient
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    info = IPCTrainerInitInfo(packed=True, rank=rank)
    if meeting is not None:
        address, port = meeting
        info = NCCLTrainerInitInfo(master_address=address, master_port=port, world_size=processes, rank=rank)
    return WeightTransferTrainerFactory.trainer_init(info, client=RayVLLMWeightSyncClient(engine), source=source)


def send_weights(sender: Any, source: Any) -> int:
    """Send all tensors over a connection, which does not keep them. -> their number"""
    sender.source = source
    sender.send_weights()
    sender.source = None
    return len(source.metadata())


def import_engine() -> None:
    """What an engine's own process imports."""
    import vllm.v1.engine.core
    import vllm.v1.worker.cpu_worker  # noqa: F401


def start_engines_from(context: Any) -> None:
    """Engines' own processes come from this multiprocessing context."""
    from vllm.v1.engine import utils

    # vLLM would spawn here: inside of a Ray actor it may not fork, and it knows of no third way.
    utils.get_mp_context = lambda: context


def ray_metrics() -> Any:
    """Load, cache and queue of an engine, through Ray's exporter."""
    from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger

    return RayPrometheusStatLogger


async def reload_weights(llm: Any, folder: Path) -> None:
    await llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})


class OpenAiLayer:
    """vLLM's own OpenAI layer without its HTTP server."""

    def __init__(self, llm: Any, name: str, folder: str, template: str | None) -> None:
        """`name`: of the model in the folder, where no adapter is meant."""
        from pydantic import TypeAdapter
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest
        from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
        from vllm.entrypoints.openai.models.protocol import BaseModelPath
        from vllm.entrypoints.openai.models.serving import OpenAIServingModels
        from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest
        from vllm.entrypoints.serve.tokenize.serving import ServingTokenization
        from vllm.renderers.online_renderer import OnlineRenderer

        form: dict[str, Any] = {"chat_template": template, "chat_template_content_format": "auto"}
        models = self._models = OpenAIServingModels(llm, [BaseModelPath(name=name, model_path=folder)])
        renderer = OnlineRenderer(llm.model_config, llm.renderer, request_logger=None, **form)
        chat = OpenAIServingChat(llm, models, "assistant", online_renderer=renderer, request_logger=None, **form)
        completion = OpenAIServingCompletion(llm, models, online_renderer=renderer, request_logger=None)
        tokens = ServingTokenization(models, renderer, **form)
        self._routes: dict[str, tuple[Any, Any]] = {
            "chat": (ChatCompletionRequest.model_validate, chat.create_chat_completion),
            "completion": (CompletionRequest.model_validate, completion.create_completion),
            "tokenize": (TypeAdapter(TokenizeRequest).validate_python, tokens.create_tokenize),
            "detokenize": (DetokenizeRequest.model_validate, tokens.create_detokenize),
        }

    async def ask(self, route: Literal["chat", "completion", "tokenize", "detokenize"], body: Any, traced: Any) -> Any:
        """A pydantic model (see `status_of`) or a stream of lines. Raises pydantic.ValidationError for a wrong body."""
        read, answer = self._routes[route]
        return await answer(read(body), traced)

    async def load_adapter(self, name: str, folder: Path) -> Any:
        """-> the adapter as `generate` takes it. Raises RunError where vLLM refuses it."""
        from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest

        reply = await self._models.load_lora_adapter(LoadLoRAAdapterRequest(lora_name=name, lora_path=str(folder)))
        if status_of(reply) != 200:
            raise RunError(f"the adapter {name} was not loaded: {reply.error.message}")
        return self._models.lora_requests[name]

    async def unload_adapter(self, name: str) -> None:
        from vllm.entrypoints.serve.lora.protocol import UnloadLoRAAdapterRequest

        await self._models.unload_lora_adapter(UnloadLoRAAdapterRequest(lora_name=name))


def error_reply(error: Exception) -> Any:
    """vLLM's answer where a request ended in an error."""
    from vllm.entrypoints.serve import create_error_response

    return create_error_response(error)


def status_of(reply: Any) -> int:
    """The HTTP status of a reply of vLLM's OpenAI layer."""
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse

    return int(reply.error.code) if isinstance(reply, ErrorResponse) else 200
