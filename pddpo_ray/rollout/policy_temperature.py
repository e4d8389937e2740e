"""The policy's temperature inside an engine: logits are divided where the model gives them, before they are read.

So every log-probability of the engine, of a prompt's tokens too, and everything that it samples is the policy's, for
any architecture: tied or untied, with or without a bias in the head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn


def divide_logits(model: nn.Module, temperature: float) -> None:
    """From now on `model(...).logits` of a transformers model are float32 and divided by the temperature.

    At 1.0 the model stays as it is.
    """
    if temperature != 1.0:
        model.register_forward_hook(lambda _model, _arguments, output: _divided_output(output, temperature))


def divide_vllm_logits(model: Any, temperature: float) -> None:
    """The same for a model inside a vLLM worker: what is sampled and every log-probability come from these logits."""
    for name in ("compute_logits", "compute_logits_local"):
        # The second one is how a sampler that is split over devices asks.
        compute = getattr(model, name, None)
        if temperature != 1.0 and compute is not None:
            setattr(model, name, _dividing(compute, temperature))


def _divided_output(output: Any, temperature: float) -> Any:
    output.logits = _divided(output.logits, temperature)
    return output


def _dividing(compute: Any, temperature: float) -> Any:
    def compute_divided(*arguments: Any, **options: Any) -> Any:
        logits = compute(*arguments, **options)
        # Only the first of several devices that share a model gets them.
        return None if logits is None else _divided(logits, temperature)

    return compute_divided


def _divided(logits: Tensor, temperature: float) -> Tensor:
    return logits.float() / temperature
