"""vLLM's private names: one file of the product uses them, and each minor of vLLM that is claimed has them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any, get_args

import pytest
from packaging.requirements import Requirement

from pddpo_ray.rollout.vllm_internals import PolicyWorker
from pddpo_ray.rollout.vllm_native import RANKS
from tests.unit.platform.test_imports import ROOMS, offenders, rooms_of
from tools.rooms import name_of, tree_of

ROOT = Path(__file__).parents[3]
INTERNALS = ROOT / "pddpo_ray/rollout/vllm_internals.py"
WALKED = {
    *("llm_engine", "engine_core", "model_executor", "model_runner", "quant_method", "process_weights_after_loading"),
    *("load_weights", "reload_weights", "send_weights", "lora_requests", "compute_logits", "compute_logits_local"),
}
"""Attributes that lead inside vLLM's objects."""
TRANSFER = "vllm.distributed.weight_transfer"
OPENAI = "vllm.entrypoints.openai"
FORM = "chat_template chat_template_content_format"
Use = tuple[int, str] | None
"""How a name is called: the number of arguments by position (`self` included), and those by name. None: it is there."""
NAMES: dict[str, dict[str, Use]] = {
    "0.32": {
        "vllm.model_executor.layers.vocab_parallel_embedding:ParallelLMHead": None,
        "vllm.model_executor.layers.quantization.base_config:QuantizeMethodBase.process_weights_after_loading": (2, ""),
        "vllm.v1.worker.gpu_worker:Worker.reload_weights": (1, "weights_iterator weights_path"),
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.reload_weights": (1, "weights_iterator weights_path"),
        "vllm.v1.engine.core_client:EngineCoreClient.shutdown": (1, ""),
        "vllm.lora.request:LoRARequest": (3, ""),
        f"{TRANSFER}.base:ParamMeta": (3, ""),
        f"{TRANSFER}.base:WeightSource": None,
        f"{TRANSFER}.base:TrainerWeightTransferEngine.send_weights": (1, ""),
        f"{TRANSFER}.clients:RayVLLMWeightSyncClient": (1, ""),
        f"{TRANSFER}.factory:WeightTransferTrainerFactory": None,
        f"{TRANSFER}.factory:WeightTransferTrainerFactory.trainer_init": (1, "client source"),
        f"{TRANSFER}.ipc_engine:IPCTrainerInitInfo": (0, "packed rank"),
        f"{TRANSFER}.nccl_engine:NCCLTrainerInitInfo": (0, "master_address master_port world_size rank"),
        "vllm.v1.engine.core": None,
        "vllm.v1.worker.cpu_worker": None,
        "vllm.v1.engine:utils": None,
        "vllm.v1.engine.utils:get_mp_context": (0, ""),
        "vllm.v1.metrics.ray_wrappers:RayPrometheusStatLogger": None,
        f"{OPENAI}.chat_completion.protocol:ChatCompletionRequest": None,
        f"{OPENAI}.chat_completion.serving:OpenAIServingChat": (3, f"online_renderer request_logger {FORM}"),
        f"{OPENAI}.chat_completion.serving:OpenAIServingChat.create_chat_completion": (3, ""),
        f"{OPENAI}.completion.protocol:CompletionRequest": None,
        f"{OPENAI}.completion.serving:OpenAIServingCompletion": (2, "online_renderer request_logger"),
        f"{OPENAI}.completion.serving:OpenAIServingCompletion.create_completion": (3, ""),
        f"{OPENAI}.models.protocol:BaseModelPath": (0, "name model_path"),
        f"{OPENAI}.models.serving:OpenAIServingModels": (2, ""),
        f"{OPENAI}.models.serving:OpenAIServingModels.load_lora_adapter": (2, ""),
        f"{OPENAI}.models.serving:OpenAIServingModels.unload_lora_adapter": (2, ""),
        "vllm.entrypoints.serve.tokenize.protocol:TokenizeRequest": None,
        "vllm.entrypoints.serve.tokenize.protocol:DetokenizeRequest": None,
        "vllm.entrypoints.serve.tokenize.serving:ServingTokenization": (2, FORM),
        "vllm.entrypoints.serve.tokenize.serving:ServingTokenization.create_tokenize": (3, ""),
        "vllm.entrypoints.serve.tokenize.serving:ServingTokenization.create_detokenize": (3, ""),
        "vllm.renderers.online_renderer:OnlineRenderer": (2, f"request_logger {FORM}"),
        "vllm.entrypoints.serve.lora.protocol:LoadLoRAAdapterRequest": (0, "lora_name lora_path"),
        "vllm.entrypoints.serve.lora.protocol:UnloadLoRAAdapterRequest": (0, "lora_name"),
        "vllm.entrypoints.serve:create_error_response": (1, ""),
        "vllm.entrypoints.serve.engine.protocol:ErrorResponse": None,
    }
}
"""By minor. A new one gets a table of its own, which `make test` compares with it where it is installed."""
ATTRIBUTES = {
    "vllm.entrypoints.llm:LLM": "llm_engine",
    "vllm.v1.engine.llm_engine:LLMEngine": "engine_core",
    "vllm.v1.engine.async_llm:AsyncLLM": "model_config renderer",
    "vllm.v1.worker.gpu_worker:Worker": "model_runner",
    "vllm.v1.worker.cpu_worker:CPUWorker": "model_runner",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": "model",
    "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding": "quant_method",
    f"{TRANSFER}.nccl_engine:NCCLTrainerWeightTransferEngine": "source",
    f"{TRANSFER}.ipc_engine:IPCTrainerWeightTransferEngine": "source",
    f"{OPENAI}.models.serving:OpenAIServingModels": "lora_requests",
}
"""What objects of these classes give themselves."""


@cache
def public_names() -> set[str]:
    """`__all__` of the installed vLLM, read from its source: importing it takes ten seconds."""
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    for node in ast.parse(Path(found.origin).read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    raise AssertionError("vLLM has no __all__ any longer: say otherwise which names are public")


def private_uses(tree: ast.AST) -> Iterator[str]:
    """Whatever reaches past vLLM's public names."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.partition(".")[0] == "vllm")
            case ast.ImportFrom(module="vllm", names=names):
                yield from (f"vllm:{alias.name}" for alias in names if alias.name not in public_names())
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("vllm."):
                yield from (f"{module}:{alias.name}" for alias in names)
            case ast.Attribute(attr=name) if name in WALKED:
                yield f".{name}"
            case ast.Call(func=ast.Attribute(attr="collective_rpc"), args=[ast.Constant(value=str(name)), *_]):
                if name not in vars(PolicyWorker):
                    yield f"collective_rpc {name}"
            case ast.Constant(value=str(text)) if re.fullmatch(r"vllm(\.\w+)+", text):
                yield text


@pytest.mark.parametrize("room", rooms_of(*ROOMS))
def test_one_file_reaches_past_vllms_public_names(room: str) -> None:
    def found(path: Path) -> Iterator[str]:
        return iter(()) if path == INTERNALS else private_uses(tree_of(path))

    assert offenders(room, found) == [], f"bring it into {name_of(INTERNALS)}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from vllm import LLM, SamplingParams, AsyncEngineArgs, AsyncLLMEngine", []),
        ("def start():\n    from vllm.config import ModelConfig", ["vllm.config:ModelConfig"]),
        ("from vllm import envs", ["vllm:envs"]),
        ("import vllm", ["vllm"]),
        ("import vllm.v1.engine.core as core", ["vllm.v1.engine.core"]),
        ("self.llm.llm_engine.engine_core.shutdown()", [".engine_core", ".llm_engine"]),
        ("llm.collective_rpc('divide_logits', args=(1.0,))", []),
        ("llm.collective_rpc('get_model')", ["collective_rpc get_model"]),
        ("import_module('vllm.v1.engine.utils')", ["vllm.v1.engine.utils"]),
    ],
)
def test_private_names_are_seen_in_every_spelling(text: str, found: list[str]) -> None:
    assert list(private_uses(ast.parse(text))) == found


def test_every_minor_that_is_claimed_has_its_table() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    wanted = [Requirement(text) for name in ("cpu", "gpu") for text in extras[name] if text.startswith("vllm")]
    allowed = {f"0.{n}" for n in range(100) if any(one.specifier.contains(f"0.{n}.0") for one in wanted)}
    locks = "".join(path.read_text("utf-8") for path in sorted((ROOT / "requirements").glob("*.lock")))
    locked = set(re.findall(r"^vllm(?:-cpu)?==(\d+\.\d+)\.", locks, re.M))
    assert allowed == locked == set(NAMES)


@pytest.mark.parametrize("minor", NAMES)
def test_the_table_has_every_name_that_is_imported(minor: str) -> None:
    imported = {name for name in private_uses(tree_of(INTERNALS)) if name.startswith("vllm.")}
    assert len(imported) > 20
    assert imported <= set(NAMES[minor])


def place(name: str) -> Any:
    module, _, inside = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in inside.split(".") if inside else ():
        found = getattr(found, part)
    return found


def wrong(name: str, use: Use) -> str | None:
    """What is not as it is used; None where all is."""
    try:
        found = place(name)
        if use is not None:
            inspect.signature(found).bind(*[None] * use[0], **dict.fromkeys(use[1].split()))
    except (ImportError, AttributeError, TypeError) as error:
        return f"{name}: {error}"
    return None


@pytest.mark.vllm
def test_the_installed_vllm_has_every_name_as_it_is_used() -> None:
    (distribution,) = set(packages_distributions()["vllm"])
    table = NAMES[".".join(version(distribution).split(".")[:2])]
    assert [said for name, use in table.items() if (said := wrong(name, use))] == []
    attributes = [(name, attribute) for name, attributes in ATTRIBUTES.items() for attribute in attributes.split()]
    given = {name: "".join(inspect.getsource(kind) for kind in place(name).__mro__[:-1]) for name in ATTRIBUTES}
    assert [pair for pair in attributes if not re.search(rf"self\.{pair[1]}\b.* = ", given[pair[0]])] == []
    # of a source only these two are written here; an error's status and message are read
    assert place(f"{TRANSFER}.base:WeightSource").__abstractmethods__ == {"metadata", "__iter__"}
    error = place("vllm.entrypoints.serve:create_error_response")(ValueError("too long"))
    assert isinstance(error, place("vllm.entrypoints.serve.engine.protocol:ErrorResponse"))
    assert (type(error.error.code), error.error.message) == (int, "too long")
    # the function that is replaced is the one that starts an engine's process
    assert "context = get_mp_context()" in inspect.getsource(place("vllm.v1.engine.utils:CoreEngineProcManager"))
    assert set(RANKS) <= set(get_args(place("vllm.config.lora:MaxLoRARanks")))
