"""C2: one cost stage with frozen numbers in columns against the plain loop over three models.

The plain loop is what a direct port of the paper's loss does: reference, reward policy and policy are all evaluated in
every step, on every position. Both sides start from the same weights, see the same batches and take the same optimiser
steps; their losses are compared before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bench.ratio import Ratio, interleaved
from pddpo_ray.parts import FitSettings
from pddpo_ray.records import Objective, PairRow, PolicyVersion
from pddpo_ray.training.batches import Text, collate, minibatches, texts_of
from pddpo_ray.training.engine import ADAM_BETAS, TorchEngine
from pddpo_ray.training.fit import FrozenColumns, run_fit, schedule_factor
from pddpo_ray.training.log_probs import ResponseScorer, score_texts

BETA, MULTIPLIER, SEED = 0.1, 0.8, 1
SETTINGS = FitSettings(steps=6, learning_rate=1e-4, batch_pairs=8, support_weight=0.0, max_grad_norm=1e9)


def run(vocabulary: int = 4096, repeats: int = 5, name: str = "C2") -> Ratio:
    """CPU seconds of the plain loop over those of the columns, one thread."""
    torch.set_num_threads(1)
    rows = _rows(vocabulary, pairs=48)
    reference, reward_policy, start = (_model(vocabulary, seed) for seed in (0, 1, 1))
    texts = list(dict.fromkeys(texts_of(rows)))
    weights = {name: tensor.detach().clone() for name, tensor in start.named_parameters()}

    def columns() -> float:
        engine = TorchEngine(ResponseScorer(start))
        engine.load(weights)
        engine.begin(SETTINGS)
        base = dict(zip(texts, score_texts(ResponseScorer(reward_policy), texts).tolist(), strict=True))
        frozen = FrozenColumns(base, {})
        version = PolicyVersion(1, "reward-1", "", "")
        objective = Objective("cost", version, BETA / MULTIPLIER, MULTIPLIER)
        return run_fit(engine, objective, rows, frozen, SETTINGS, SEED)["fit/loss"]

    def three_models() -> float:
        start.load_state_dict(weights)
        optimizer = torch.optim.AdamW(start.parameters(), lr=1.0, betas=ADAM_BETAS, weight_decay=0.0)
        loss = torch.zeros(())
        for step, indices in enumerate(minibatches(len(rows), SETTINGS.steps, SETTINGS.batch_pairs, SEED)):
            batch = texts_of([rows[i] for i in indices])
            with torch.no_grad():
                frozen = [_every_position(model, batch) for model in (reference, reward_policy)]
            loss = _long_form(_every_position(start, batch), *frozen)
            optimizer.zero_grad(set_to_none=True)
            (MULTIPLIER * loss).backward()
            for group in optimizer.param_groups:
                group["lr"] = SETTINGS.learning_rate * MULTIPLIER * schedule_factor(SETTINGS, step)
            optimizer.step()
        return float(loss.detach())

    _equal(columns, three_models)
    what = f"cost stage, vocabulary {vocabulary}: plain three-model loop / frozen columns"
    return interleaved(name, what, three_models, columns, repeats)


def _equal(columns: Callable[[], float], three_models: Callable[[], float]) -> None:
    ours, theirs = columns(), three_models()
    if not np.isclose(ours, theirs, rtol=1e-4):
        raise RuntimeError(f"the two sides do not compute the same: last loss {ours} and {theirs}")


def _long_form(policy: Tensor, reference: Tensor, reward_policy: Tensor) -> Tensor:
    """The paper's loss with the reference in it. Log-probabilities [2B], chosen first -> []"""
    cost = (BETA * (reward_policy - reference) - BETA * (policy - reference)) / MULTIPLIER
    half = len(cost) // 2
    return torch.nn.functional.softplus(-(cost[half:] - cost[:half])).mean()


def _every_position(model: torch.nn.Module, texts: list[Text]) -> Tensor:
    """Log-probabilities from the whole vocabulary matrix of the padded batch. -> [n]"""
    batch = collate(texts)
    log_softmax = torch.log_softmax(model(input_ids=batch.ids).logits, dim=-1)
    picked = log_softmax[batch.row, batch.column].gather(-1, batch.target[:, None])[:, 0]
    return picked.new_zeros(len(texts)).index_add(0, batch.row, picked)


def _rows(vocabulary: int, pairs: int) -> list[PairRow]:
    """Pairs whose lengths are spread as in dialogues: prompts of 16 to 48 tokens, answers of 24 to 96."""
    rng = np.random.default_rng([SEED, vocabulary])

    def text(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.integers(4, vocabulary, rng.integers(low, high)).tolist())

    return [PairRow(f"r{i}", text(16, 48), text(24, 96), text(24, 96)) for i in range(pairs)]


def _model(vocabulary: int, seed: int) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
    )
    return LlamaForCausalLM(config).float().eval()
