"""What a pass keeps, measured on models of one and two layers, against torch's own tracker at three layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import LlamaConfig, LlamaForCausalLM

from pddpo_ray.training.models.lora import add_adapters
from pddpo_ray.training.passes.log_probs import ResponseScorer
from pddpo_ray.training.passes.memory import layer_bytes
from pddpo_ray.training.passes.shape_memory import sizes_of_shape, without_memory

SHAPE = {"hidden_size": 512, "intermediate_size": 1376, "vocab_size": 3000, "num_attention_heads": 8}
SMOLLM2 = {"hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49_152}
SMOLLM2 |= {"num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": True}
PROMPT, ANSWER, PAIRS, DEPTH = 64, 96, 4, 3


@pytest.mark.run
@pytest.mark.parametrize("rank", [None, 16])
@pytest.mark.parametrize(("groups", "device"), [(8, "cpu"), (2, "cpu"), (2, "cuda")])
def test_planned_activations_are_those_that_torch_tracks(
    rank: int | None, groups: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In lines and segments, with shared key-value heads, with adapters; the tracker wants hooks on frozen weights."""
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        monkeypatch.setattr(torch.Tensor, name, allowed_on_frozen(getattr(torch.Tensor, name)))
    shape = {**SHAPE, "num_key_value_heads": groups}
    described = json.dumps({"model_type": "llama", "num_hidden_layers": DEPTH, **shape})
    sizes = replace(sizes_of_shape(described, "bfloat16", rank, PROMPT, ANSWER, device), layers=DEPTH)
    planned = layer_bytes(PAIRS * (PROMPT + 2 * ANSWER), sizes)
    assert planned == pytest.approx(tracked(shape, rank, DEPTH, device), rel=0.02)


@pytest.mark.full
@pytest.mark.run
@pytest.mark.parametrize("rank", [None, 16])
def test_all_thirty_layers_of_smollm2_keep_what_is_planned_from_one_and_two(
    rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        monkeypatch.setattr(torch.Tensor, name, allowed_on_frozen(getattr(torch.Tensor, name)))
    described = json.dumps({"model_type": "llama", "num_hidden_layers": 30, **SMOLLM2})
    sizes = sizes_of_shape(described, "bfloat16", rank, PROMPT, ANSWER, "cpu")
    planned = layer_bytes(PAIRS * (PROMPT + 2 * ANSWER), sizes)
    assert planned == pytest.approx(tracked(SMOLLM2, rank, 30, "cpu"), rel=0.01)


def allowed_on_frozen(register: Callable[..., Any]) -> Callable[..., Any]:
    def hook(tensor: torch.Tensor, function: Any) -> Any:
        return register(tensor, function) if tensor.requires_grad else SimpleNamespace(remove=lambda: None)

    return hook


def tracked(shape: dict[str, int], rank: int | None, layers: int, device: str) -> int:
    """Bytes that are there after a forward pass, beside the weights."""
    with torch.device("meta"):
        model: torch.nn.Module = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **shape)).to(torch.bfloat16)
        if rank is not None:
            model = add_adapters(model, rank=rank, alpha=1.0)
    scorer = ResponseScorer(model, "packed", device=device)
    answers = [(100 + index,) * ANSWER for index in range(2 * PAIRS)]
    texts = [((index % PAIRS,) * PROMPT, answer) for index, answer in enumerate(answers)]
    with FakeTensorMode(allow_non_fake_inputs=True):
        without_memory(model)
        tracker = MemTracker()
        with tracker:
            result = scorer.log_probs(texts)[0].sum()
            held = tracker.get_tracker_snapshot("current")[torch.device("cpu")]["Total"]
        del result
    return int(held) - sum(2 * parameter.numel() for parameter in model.parameters())
