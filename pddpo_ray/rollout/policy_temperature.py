"""The policy's temperature inside an engine: logits are divided where the model gives them, before they are read.

So every log-probability of the engine, of a prompt's tokens too, and everything that it samples is the policy's, for
any architecture: tied or untied, with or without a bias in the head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def divide_logits(model: nn.Module, temperature: float) -> None:
    """From now on `model(...).logits` of a transformers model are float32 and divided by the temperature.

    At 1.0 the model stays as it is.
    """

    def divided(_model: Any, _arguments: Any, output: Any) -> Any:
        output.logits = output.logits.float() / temperature
        return output

    if temperature != 1.0:
        model.register_forward_hook(divided)


def dividing(compute: Any, temperature: float) -> Any:
    """The method by which a model inside a vLLM worker computes its logits, as one that divides them."""

    def compute_divided(*arguments: Any, **options: Any) -> Any:
        logits = compute(*arguments, **options)
        # Only the first of several devices that share a model gets them.
        return None if logits is None else logits.float() / temperature

    return compute_divided
