"""What a forward pass keeps for its backward pass, measured without loading the model.

    kept(model of L layers) = outside + L * layer          per token; two depths give both

The model is of fake tensors (shapes, types and devices alone): 7B shapes take seconds on any machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from pddpo_ray.training.batches import Text
from pddpo_ray.training.models.lora import add_adapters
from pddpo_ray.training.passes.log_probs import ResponseScorer, kept_bytes
from pddpo_ray.training.passes.memory import Sizes
from pddpo_ray.training.passes.packing import can_pack


@cache
def sizes_of_shape(
    architecture: str, dtype: str, adapter_rank: int | None, prompt: int, answer: int, device: str
) -> Sizes:
    """architecture: its `config.json`; prompt, answer: tokens of a pair's texts, which share the prompt."""
    described: dict[str, Any] = json.loads(architecture)
    texts = [((1,) * prompt, (2,) * answer), ((1,) * prompt, (3,) * answer)]
    tokens, width = prompt + 2 * answer, getattr(torch, dtype).itemsize
    shallow, deep = (_kept_at_depth(described, depth, dtype, adapter_rank, texts, device) for depth in (1, 2))
    hidden = described["n_embd"] if "n_embd" in described else described["hidden_size"]
    layers = described["n_layer"] if "n_layer" in described else described["num_hidden_layers"]
    return Sizes(
        layers, width, (deep - shallow) / tokens, input=float(hidden * width), outside=(2 * shallow - deep) / tokens
    )


def _kept_at_depth(
    described: Mapping[str, Any], depth: int, dtype: str, adapter_rank: int | None, texts: Sequence[Text], device: str
) -> int:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {name: value for name, value in described.items() if name not in ("layer_types", "dtype", "torch_dtype")}
    shape["n_layer" if "n_layer" in shape else "num_hidden_layers"] = depth
    with torch.device("meta"):
        config = AutoConfig.for_model(shape.pop("model_type"), **shape)
        model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
        if adapter_rank is not None:
            model = add_adapters(model, rank=adapter_rank, alpha=1.0)
    scorer = ResponseScorer(model, "packed" if can_pack(model) else "plain", device=device)
    with FakeTensorMode(allow_non_fake_inputs=True):
        without_memory(model)
        return kept_bytes(scorer, texts)


def without_memory(model: nn.Module) -> None:
    """Gives a meta model fake tensors on the host, where attention is one kernel as on a GPU. In FakeTensorMode only.

    peft's layers refuse to be moved there.
    """
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                empty = torch.empty(parameter.shape, dtype=parameter.dtype)
                module._parameters[name] = nn.Parameter(empty, parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
