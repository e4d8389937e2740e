"""Training engines by the names that recipes use."""

from __future__ import annotations

from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.fit import Engine, Shard
from pddpo_ray.training.log_probs import ResponseScorer


def make_engine(name: str, scorer: ResponseScorer, shard: Shard, *, dtype: str = "float32") -> Engine:
    """`torch`, or `zero1` to `zero3`; DeepSpeed is imported only where it is asked for."""
    if name == "torch":
        return TorchEngine(scorer, shard)
    return _deepspeed(name, scorer, shard, dtype)


def make_lora_engine(name: str, scorer: ResponseScorer, shard: Shard, *, dtype: str = "float32") -> Engine:
    """The same for a scorer whose model carries adapters: weights are the adapters' alone."""
    if name == "torch":
        from pddpo_ray.training.lora import LoraEngine

        return LoraEngine(scorer, shard)
    return _deepspeed(name, scorer, shard, dtype)


def _deepspeed(name: str, scorer: ResponseScorer, shard: Shard, dtype: str) -> Engine:
    from actors.deepspeed_engine import DeepSpeedEngine

    return DeepSpeedEngine(scorer, shard, stage=int(name.removeprefix("zero")), dtype=dtype)
