"""DeepSpeed ZeRO 1, 2 and 3 behind the same interface as the plain torch engine.

DeepSpeed averages gradients over ranks while losses here are shares of the whole batch, so a loss is multiplied by the
number of ranks. Its automatic gradient accumulation is off: a call of `update` is the boundary. A ZeRO engine keeps
a float32 copy of its part of the weights, which must follow whenever other weights are loaded, and an optimiser
state, which a new fit must not inherit.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pddpo_ray.config import FitConfig
from pddpo_ray.training.batches import moved
from pddpo_ray.training.engine import adam_betas, copied, matched
from pddpo_ray.training.fit import PairLoss, PairPass, Shard, Tensors
from pddpo_ray.training.passes.log_probs import ResponseScorer, device_of
from pddpo_ray.training.passes.memory import GATHERED, reduced_numbers

logger = logging.getLogger(__name__)
STALE_LOCK_S = 900
"""A build of DeepSpeed's CPU op takes about a minute; a lock that is much older belongs to one that was killed."""


class DeepSpeedEngine:
    """AdamW under ZeRO `stage`; satisfies `pddpo_ray.training.fit.Engine`.

    The process group exists already (Ray Train made it). Weights are those of the trainable parameters, by their names
    in the scorer's model.
    """

    def __init__(self, scorer: ResponseScorer, shard: Shard, *, stage: int, dtype: str = "float32") -> None:
        self.shard = shard
        self.scorer = scorer.eval()
        self._stage = stage
        self._has_masters = dtype == "bfloat16"
        self._parameters = {n: p for n, p in scorer.model.named_parameters() if p.requires_grad}
        # Taken now: under stage 3 the parameters are empty once DeepSpeed starts.
        self._shapes = {name: torch.empty_like(p, device="meta") for name, p in self._parameters.items()}
        self._engine = _initialize(scorer, list(self._parameters.values()), stage, dtype)

    def load(self, weights: Tensors) -> None:
        import deepspeed

        for parameter, (_, value) in zip(self._parameters.values(), matched(self._shapes, weights), strict=True):
            # One at a time: a whole model would not fit where stage 3 is needed.
            whole = deepspeed.zero.GatheredParameters([parameter], modifier_rank=0, enabled=self._stage == 3)
            with whole, torch.no_grad():
                if self._stage < 3 or self.shard.rank == 0:
                    parameter.copy_(value)
        self._engine.optimizer.refresh_fp32_params()
        self._load_masters(weights)

    def begin(self, settings: FitConfig, moments: Tensors | None = None) -> None:
        if moments is not None:
            raise RuntimeError("AdamW begins afresh under DeepSpeed")
        optimizer = self._engine.optimizer
        optimizer.optimizer.state.clear()
        optimizer.clip_grad = settings.max_grad_norm
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate
            group["betas"] = adam_betas(settings)
            group["weight_decay"] = settings.weight_decay
        self._engine.zero_grad()

    def moments(self) -> dict[str, Tensor]:
        raise RuntimeError("DeepSpeed's moments are not kept")

    def backward(self, loss: Tensor) -> None:
        # DeepSpeed counts micro-batches in its own forward, which the scorer does not pass through; without this, stage
        # 3 would keep the last micro-batch's gradient alone.
        self._engine.optimizer.clear_backward_seen_flag()
        self._engine.backward(loss * self.shard.ranks)

    def accumulate(self, loss: PairLoss, pair_pass: PairPass) -> Tensor:
        value, statistics = loss(moved(pair_pass, device_of(self.scorer)))
        self.backward(value)
        return statistics

    def look(self, loss: PairLoss, pair_pass: PairPass) -> Tensor:
        return loss(moved(pair_pass, device_of(self.scorer)))[1]

    def end(self) -> None:
        self._engine.optimizer.optimizer.state.clear()

    def update(self, learning_rate: float) -> float:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        return float(self._engine.get_global_grad_norm())

    def reduce_sum(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    def gather(self, part: np.ndarray) -> list[np.ndarray]:
        parts: list[np.ndarray] = [part] * self.shard.ranks
        dist.all_gather_object(parts, part)
        return parts

    def each_weight(self) -> Iterator[tuple[str, Tensor]]:
        import deepspeed

        for name, parameter in self._parameters.items():
            if self._has_masters:
                yield name, deepspeed.utils.safe_get_full_fp32_param(parameter).detach()
            else:
                with deepspeed.zero.GatheredParameters([parameter], enabled=self._stage == 3):
                    yield name, parameter.detach()

    def weights(self) -> dict[str, Tensor]:
        return copied(self.each_weight(), self.shard)

    def _load_masters(self, weights: Tensors) -> None:
        """Sets the float32 copies from `weights`, which the parameters hold rounded."""
        import deepspeed

        if self._has_masters:
            device = device_of(self.scorer)
            for name, parameter in self._parameters.items():
                deepspeed.utils.safe_set_full_fp32_param(parameter, weights[name].to(device).float())


def wait_for_builds(cache: Path | None = None, stale_s: float = STALE_LOCK_S) -> None:
    """Waits while a process builds DeepSpeed's CPU op. Removes a lock that is `stale_s` seconds old: its build was
    killed, and DeepSpeed would never stop waiting for it. `cache` is torch's folder of extensions."""
    from torch.utils.cpp_extension import get_default_build_root

    root = cache or Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    for lock in root.glob("**/deepspeed_shm_comm/lock"):
        has_logged = False
        while (age := _age_s(lock)) is not None and age < stale_s:
            if not has_logged:
                seconds = stale_s - age
                logger.info("waits for a build of DeepSpeed's CPU op, at most %.0f s: %s is there", seconds, lock)
                has_logged = True
            time.sleep(0.2)
        if age is not None:  # a released lock may be another process's by now
            lock.unlink(missing_ok=True)


def _age_s(lock: Path) -> float | None:
    """None without a lock."""
    try:
        return time.time() - lock.stat().st_mtime
    except FileNotFoundError:
        return None


def _initialize(scorer: ResponseScorer, parameters: list[torch.nn.Parameter], stage: int, dtype: str) -> Any:
    on_gpu = device_of(scorer).type == "cuda"
    if not on_gpu:
        # Read by DeepSpeed while it is imported; it would look for a device otherwise.
        os.environ["DS_ACCELERATOR"] = "cpu"
        wait_for_builds()
    import deepspeed

    deepspeed.init_distributed(dist_backend="nccl" if on_gpu else "gloo", verbose=False)
    optimizer = torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.0)
    engine, *_ = deepspeed.initialize(
        model=scorer,
        optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "managed_gradient_accumulation": False,
            "gradient_clipping": 1.0,
            "bf16": {"enabled": dtype == "bfloat16"},
            "zero_optimization": {
                "stage": stage,
                "overlap_comm": False,
                "reduce_bucket_size": reduced_numbers(sum(parameter.numel() for parameter in parameters)),
                "stage3_max_live_parameters": GATHERED,
            },
            "zero_allow_untested_optimizer": True,
            "wall_clock_breakdown": False,
        },
        dist_init_required=False,
    )
    return engine
