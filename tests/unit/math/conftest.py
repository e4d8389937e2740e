"""Independent answers that several tests compare with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import settings

# No test depends on how busy the machine is, and every run tries the same examples.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

Loss = Callable[..., torch.Tensor]


@pytest.fixture(scope="session")
def trl_sigmoid_loss() -> Loss:
    """TRL's own DPO loss code (`loss_type="sigmoid"`) on given log-probabilities, one pair at a time. -> [B]

    The trainer's method is executed unchanged; around it stand only a model that answers with the given sums and the
    few settings that the method reads.
    """
    from trl import DPOTrainer

    def loss(
        chosen: Any, rejected: Any, reference_chosen: Any, reference_rejected: Any, *, beta: float
    ) -> torch.Tensor:
        rows = zip(chosen, rejected, reference_chosen, reference_rejected, strict=True)
        return torch.stack([_one_pair(DPOTrainer, *row, beta=beta) for row in rows])

    return loss


def _one_pair(
    trainer_class: Any, chosen: Any, rejected: Any, reference_chosen: Any, reference_rejected: Any, *, beta: float
) -> torch.Tensor:
    log_probs = torch.stack([chosen, rejected])[:, None]  # one response token holds the whole sum
    outputs = SimpleNamespace(
        log_probs=log_probs,
        entropy=torch.zeros_like(log_probs),
        mean_logits=torch.zeros_like(log_probs),
        is_top1=torch.zeros_like(log_probs, dtype=torch.bool),
    )
    settings = SimpleNamespace(
        model=SimpleNamespace(training=False),
        accelerator=SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x),
        aux_loss_enabled=False,
        ld_alpha=None,
        precompute_ref_logps=True,
        f_divergence_type="reverse_kl",
        loss_types=["sigmoid"],
        loss_weights=[1.0],
        label_smoothing=0.0,
        use_weighting=False,
        beta=beta,
        _metrics={"eval": defaultdict(list)},
        _total_train_tokens=0,
    )
    inputs = {
        "input_ids": torch.zeros(2, 2, dtype=torch.long),
        "attention_mask": torch.ones(2, 2, dtype=torch.long),
        "completion_mask": torch.tensor([[0, 1], [0, 1]]),
        "ref_chosen_logps": reference_chosen[None],
        "ref_rejected_logps": reference_rejected[None],
    }
    return trainer_class._compute_loss(settings, lambda **_: outputs, inputs, return_outputs=False)
