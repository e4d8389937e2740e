"""C2: one cost stage with frozen numbers in columns against the plain loop over three models.

The plain loop is what a direct port of the paper's loss does: reference, reward policy and policy are all evaluated in
every step, on every position of both texts. Both sides start from the same weights, see the same batches and take the
same optimiser steps; their losses are compared before anything is timed. Our side's time includes the columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.ratio import Ratio, assert_same, interleaved
from bench.workload import language_model, preference_rows
from pddpo_ray.parts import FitSettings
from pddpo_ray.records import Objective, PolicyVersion
from pddpo_ray.training.batches import Text, collate, minibatches, texts_of
from pddpo_ray.training.engine import ADAM_BETAS, TorchEngine
from pddpo_ray.training.fit import FrozenColumns, run_fit, schedule_factor
from pddpo_ray.training.log_probs import ResponseScorer, score_texts

BETA, MULTIPLIER, SEED, EPOCHS = 0.1, 0.8, 1, 3


def run(vocabulary: int = 4096, repeats: int = 5, name: str = "C2", pairs: int = 4, floor: float = 2.2) -> Ratio:
    """CPU seconds of the plain loop over those of the columns, one thread."""
    torch.set_num_threads(1)
    batch = min(8, pairs)
    rows = preference_rows(vocabulary, pairs)
    settings = FitSettings(
        steps=EPOCHS * pairs // batch, learning_rate=1e-4, batch_pairs=batch, support_weight=0.0, max_grad_norm=1e9
    )
    reference, reward_policy, start = (language_model(vocabulary, seed) for seed in (0, 1, 1))
    texts = list(dict.fromkeys(texts_of(rows)))
    weights = {name: tensor.detach().clone() for name, tensor in start.named_parameters()}
    engine = TorchEngine(ResponseScorer(start))

    def columns() -> float:
        engine.load(weights)
        base = dict(zip(texts, score_texts(engine.scorer, texts).tolist(), strict=True))
        engine.begin(settings)
        version = PolicyVersion(1, "reward-1", "", "")
        objective = Objective("cost", version, BETA / MULTIPLIER, MULTIPLIER)
        return run_fit(engine, objective, rows, FrozenColumns(base, {}), settings, SEED)["fit/loss"]

    def three_models() -> float:
        start.load_state_dict(weights)
        optimizer = torch.optim.AdamW(start.parameters(), lr=1.0, betas=ADAM_BETAS, weight_decay=0.0, fused=True)
        losses = []
        for step, indices in enumerate(minibatches(len(rows), settings.steps, settings.batch_pairs, SEED)):
            own = texts_of([rows[i] for i in indices])
            with torch.no_grad():
                frozen = [every_position(model, own) for model in (reference, reward_policy)]
            loss = long_form(every_position(start, own), *frozen)
            optimizer.zero_grad(set_to_none=True)
            (MULTIPLIER * loss).backward()
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * MULTIPLIER * schedule_factor(settings, step)
            optimizer.step()
            losses.append(float(loss.detach()))
        return float(np.mean(losses[-max(1, len(losses) // 5) :]))

    assert_same(three_models(), columns())
    what = f"cost stage on HH pairs, vocabulary {vocabulary}: plain three-model loop / ours"
    return interleaved(name, what, three_models, columns, repeats, floor=floor, unit=("pairs", EPOCHS * pairs))


def long_form(policy: Tensor, reference: Tensor, reward_policy: Tensor) -> Tensor:
    """The paper's loss with the reference in it. Log-probabilities [2B], chosen first -> []"""
    cost = (BETA * (reward_policy - reference) - BETA * (policy - reference)) / MULTIPLIER
    half = len(cost) // 2
    return torch.nn.functional.softplus(-(cost[half:] - cost[:half])).mean()


def every_position(model: Any, texts: list[Text]) -> Tensor:
    """Log-probabilities from the whole vocabulary matrix of the padded batch. -> [n]"""
    batch = collate(texts)
    log_softmax = torch.log_softmax(model(input_ids=batch.ids).logits, dim=-1)
    picked = log_softmax[batch.row, batch.column].gather(-1, batch.target[:, None])[:, 0]
    return picked.new_zeros(len(texts)).index_add(0, batch.row, picked)
