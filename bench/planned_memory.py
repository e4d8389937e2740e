"""Memory of a training step: planned, and tracked by torch's MemTracker on models of fake tensors, without a GPU.

python -m bench.planned_memory        # writes bench/results/memory.md, some minutes on a core

A step of two passes is tracked at one and at two layers; what a layer adds is the same at any depth (held at full depth
by a test on the 135M shape). ZeRO at these sizes is planned alone; `bench.zero_memory` tracks it on two small ranks.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import LlamaConfig, LlamaForCausalLM

from bench.device import GIB
from pddpo_ray.contracts import FitSettings
from pddpo_ray.records import Objective, PairRow, PolicyVersion
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.fit import Engine, PairLoss, PairPass
from pddpo_ray.training.models.lora import add_adapters
from pddpo_ray.training.passes.log_probs import ResponseScorer
from pddpo_ray.training.passes.memory import memory_need
from pddpo_ray.training.passes.shape_memory import sizes_of_shape, without_memory

PAGE, ON_RANKS = Path("bench/results/memory.md"), Path("bench/results/zero_memory.json")
PROMPT, ANSWER, PAIRS = 128, 384, 2
RANK = 16


def _llama(layers: int, hidden: int, inside: int, heads: int, groups: int, words: int) -> dict[str, int]:
    widths = {"hidden_size": hidden, "intermediate_size": inside, "num_hidden_layers": layers, "vocab_size": words}
    return {**widths, "num_attention_heads": heads, "num_key_value_heads": groups}


SHAPES = {
    "135M (SmolLM2)": _llama(30, 576, 1536, 9, 3, 49_152),
    "1B (Llama 3.2)": _llama(16, 2048, 8192, 32, 8, 128_256),
    "7B (Llama 2)": _llama(32, 4096, 11_008, 32, 32, 32_000),
    "8B (Llama 3)": _llama(32, 4096, 14_336, 32, 8, 128_256),
    "13B (Llama 2)": _llama(40, 5120, 13_824, 40, 40, 32_000),
}
"""Embedding and head of their own, also where the model ties them."""


def made(
    shape: Mapping[str, int],
    rank: int | None,
    dtype: torch.dtype,
    layers: int | None = None,
    *,
    in_nf4: bool = False,
    device: str = "meta",
) -> torch.nn.Module:
    """A model, on meta without memory; `layers` in place of its own number."""
    depth = shape["num_hidden_layers"] if layers is None else layers
    with torch.device(device):
        model: torch.nn.Module = LlamaForCausalLM(LlamaConfig(**{**shape, "num_hidden_layers": depth})).to(dtype)
        if in_nf4:
            _take_four_bit_maps(model, dtype)
        return model if rank is None else add_adapters(model, rank=rank, alpha=1.0)


def _take_four_bit_maps(model: torch.nn.Module, dtype: torch.dtype) -> None:
    from bitsandbytes.nn import Linear4bit

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear) and name != "lm_head":
                narrow = Linear4bit(child.in_features, child.out_features, bias=False, compute_dtype=dtype)
                narrow.support_avx512bf16_for_cpu = False
                setattr(module, name, narrow)


def _fill_four_bit_maps(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Codes and scales as bitsandbytes keeps them, of fake tensors."""
    from bitsandbytes.functional import QuantState
    from bitsandbytes.nn import Linear4bit

    for module in model.modules():
        if isinstance(module, Linear4bit):
            shape = torch.Size((module.out_features, module.in_features))
            scales = QuantState(
                absmax=torch.empty(shape.numel() // (64 * 256)),
                code=torch.empty(256),
                blocksize=256,
                dtype=torch.float32,
            )
            codes = torch.empty(shape.numel() // 2, 1, dtype=torch.uint8)
            module.weight = torch.nn.Parameter(codes, requires_grad=False)
            module.weight.quant_state = QuantState(
                absmax=torch.empty(shape.numel() // 64, dtype=torch.uint8),
                shape=shape,
                code=torch.empty(16),
                blocksize=64,
                quant_type="nf4",
                dtype=dtype,
                offset=torch.empty(()),
                state2=scales,
            )


def tracked_step(
    shape: Mapping[str, int], rank: int | None, dtype: torch.dtype, layers: int, *, in_nf4: bool = False
) -> int:
    """The most bytes that are alive in the second of two steps, of two passes each."""
    model = made(shape, rank, dtype, layers, in_nf4=in_nf4)
    scorer = ResponseScorer(model, "packed")
    with FakeTensorMode(allow_non_fake_inputs=True), for_tracker():
        without_memory(model)
        if in_nf4:
            _fill_four_bit_maps(model, dtype)
        with MemTracker() as tracker:
            return peak_of_two_steps(tracker, TorchEngine(scorer), scorer)


def peak_of_two_steps(tracker: MemTracker, engine: Engine, scorer: ResponseScorer) -> int:
    """The most bytes that are alive in two steps of two passes each."""
    rows = [PairRow(f"{i}", (1 + i,) * PROMPT, (50 + i,) * ANSWER, (70 + i,) * ANSWER) for i in range(PAIRS)]
    loss = PairLoss(scorer, Objective("reward", PolicyVersion(0, "reference", "", ""), 0.1))
    engine.begin(FitSettings())
    whole = (float(PAIRS), 2.0 * PAIRS, 1.0)
    given = PairPass.of(scorer, rows, base=[0.0] * 2 * PAIRS, margins=None, supports=None, whole=whole)
    for _ in range(2):
        for _ in range(2):
            engine.accumulate(loss, given)
            tracker.reset_mod_stats()
        if not math.isfinite(engine.update(1e-4)):
            raise SystemExit("gradients that are not finite: no step was taken")
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


def tracked(
    shape: Mapping[str, int], rank: int | None, dtype: torch.dtype = torch.bfloat16, *, in_nf4: bool = False
) -> int:
    """The same at full depth, from one and from two layers."""
    one, two = (tracked_step(shape, rank, dtype, layers, in_nf4=in_nf4) for layers in (1, 2))
    return one + (shape["num_hidden_layers"] - 1) * (two - one)


def planned(
    shape: Mapping[str, int],
    rank: int | None,
    dtype: torch.dtype = torch.bfloat16,
    *,
    stage: int = 0,
    ranks: int = 1,
    device: str = "cpu",
    in_nf4: bool = False,
) -> float:
    """Bytes of a rank in the plan of a run."""
    parameters = list(made(shape, rank, dtype).parameters())
    maps = [one.numel() for one in parameters if one.ndim == 2 and not one.requires_grad]
    outside = 2 * shape["vocab_size"] * shape["hidden_size"]
    described = json.dumps({"model_type": "llama", **shape})
    need = memory_need(
        parameters=sum(one.numel() for one in parameters),
        trained=sum(one.numel() for one in parameters if one.requires_grad),
        vocabulary=shape["vocab_size"],
        sizes=sizes_of_shape(described, str(dtype).removeprefix("torch."), rank, PROMPT, ANSWER, device),
        tokens=PAIRS * (PROMPT + 2 * ANSWER),
        stage=stage,
        ranks=ranks,
        device=device,
        in_nf4=sum(maps) - outside if in_nf4 else 0,
    )
    return sum(need.values())


@contextmanager
def for_tracker() -> Iterator[None]:
    """Fake tensors have no norm that could be read, and the tracker wants hooks on frozen weights too."""

    def allowed(register: Callable[..., Any]) -> Callable[..., Any]:
        def hook(tensor: torch.Tensor, function: Any) -> Any:
            return register(tensor, function) if tensor.requires_grad else SimpleNamespace(remove=lambda: None)

        return hook

    names = ("register_hook", "register_post_accumulate_grad_hook")
    changed: dict[str, Any] = {name: allowed(getattr(torch.Tensor, name)) for name in names}
    with (
        patch("torch.nn.utils.clip_grad_norm_", lambda *_: 1.0),
        patch.multiple(torch.Tensor, **changed),
        warnings.catch_warnings(),
    ):
        # of frozen weights, which have no gradient
        warnings.filterwarnings("ignore", "Expected a tensor")
        yield


def rows() -> Iterator[str]:
    for name, shape in SHAPES.items():
        for rank in (None, RANK):
            seen, plan = tracked(shape, rank), planned(shape, rank)
            zero = [
                planned(shape, rank, stage=stage, ranks=ranks, device="cuda")
                for stage in (1, 2, 3)
                for ranks in (1, 4, 8)
            ]
            cells = [f"{size / GIB:.2f}" for size in (seen, plan)] + [f"{plan / seen:.3f}"]
            cells += [f"{size / GIB:.1f}" for size in zero]
            yield f"| {name} | {'all' if rank is None else f'adapters, rank {rank}'} | {' | '.join(cells)} |"
        if shape["hidden_size"] >= 4096:
            seen, plan = tracked(shape, RANK, in_nf4=True), planned(shape, RANK, in_nf4=True)
            cells = [f"{size / GIB:.2f}" for size in (seen, plan)] + [f"{plan / seen:.3f}", *["-"] * 9]
            yield f"| {name} | adapters, rank {RANK}, base in NF4 | {' | '.join(cells)} |"


def page(lines: Iterator[str]) -> str:
    heads = [f"ZeRO-{stage}, {ranks}" for stage in (1, 2, 3) for ranks in (1, 4, 8)]
    head = ["shape", "trained", "tracked", "planned", "planned / tracked", *heads]
    told = (
        "# Memory of a training step, planned against tracked\n\n"
        f"GiB of a rank in bfloat16, passes of {PAIRS} pairs of {PROMPT} + {ANSWER} tokens that share their prompts.\n"
        "Tracked: by torch's MemTracker on fake tensors, in plain torch with the head's chunks of a CPU. Right of the\n"
        "ratio: the plan with DeepSpeed on so many cards, chunks and attention as on a GPU, which nothing tracked;\n"
        "under ZeRO-3 whole logits. `python -m bench.planned_memory` writes this page. No card took part; NF4 takes\n"
        "no ZeRO.\n\n"
    )
    table = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines]
    return told + "\n".join(table) + "\n" + on_ranks()


def on_ranks() -> str:
    """What `bench.zero_memory` found."""
    lines = [
        "",
        "## Two ranks of DeepSpeed",
        "",
        "GiB of a rank on CPUs, real tensors; SmolLM2's shape with 6 layers, embedding and head apart, bfloat16,",
        "the same passes. `python -m bench.zero_memory` writes it.",
        "",
        "| stage | trained | tracked | planned | planned / tracked |",
        "|---|---|---|---|---|",
    ]
    for one in json.loads(ON_RANKS.read_text(encoding="utf-8")):
        numbers = f"{one['tracked']:.2f} | {one['planned']:.2f} | {one['ratio']:.3f}"
        lines.append(f"| ZeRO-{one['stage']} | {one['trained']} | {numbers} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    PAGE.write_text(page(rows()), encoding="utf-8")
