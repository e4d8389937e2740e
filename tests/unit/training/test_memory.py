"""Passes, ranks and budgets: they change what is in memory, not what is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from pddpo_ray.contracts import FitSettings
from pddpo_ray.records import Objective, PairRow, PolicyVersion
from pddpo_ray.training.batches import Limit, micro_batches, pair_tokens, texts_of
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.fit import FrozenColumns, micro_batch_limit, run_fit
from pddpo_ray.training.passes.log_probs import ResponseScorer, score_texts
from pddpo_ray.training.passes.memory import Sizes, layer_bytes, memory_need, recomputed_layers, tokens_within
from tests.support.tiny_language_model import tiny_llama

ROWS = [PairRow(f"r{i}", (1, 9, 4), tuple(range(5, 6 + i)), (8, 2)) for i in range(9)]
LENGTHS = [pair_tokens(row) for row in ROWS]
SIZES = Sizes(layers=2, width=4, layer=4400.0, input=256.0)


def test_every_row_is_in_one_pass_of_one_rank_and_all_ranks_do_as_many_passes() -> None:
    batch = np.array([8, 0, 5, 3, 7, 1])
    lengths = [LENGTHS[i] for i in batch]
    for ranks in (1, 2, 4):
        for limit in (Limit(), Limit(pairs=2), Limit(tokens=20)):
            passes = micro_batches(batch, lengths, ranks, limit)
            assert len({len(own) for own in passes}) == 1
            assert sorted(np.concatenate([part for own in passes for part in own])) == sorted(batch)
            for part in (part for own in passes for part in own):
                assert len(part) <= (limit.pairs or 6)
                assert len(part) < 2 or sum(LENGTHS[i] for i in part) <= (limit.tokens or 10**6)


def test_one_rank_without_a_limit_takes_the_batch_as_it_was_drawn() -> None:
    batch = np.array([3, 1, 2])
    assert micro_batches(batch, [9, 1, 5], 1, Limit())[0][0].tolist() == [3, 1, 2]


def test_rows_of_a_group_follow_each_other_through_the_passes() -> None:
    """Six pairs of four answers to each of two prompts: by length alone both would be in every pass."""
    lengths = [3, 9, 5, 11, 7, 13, 4, 10, 6, 12, 8, 14]
    groups = ["a", "a", "b", "a", "b", "b", "a", "b", "a", "b", "a", "b"]
    (parts,) = micro_batches(np.arange(12), lengths, 1, Limit(pairs=3), groups)
    assert [{groups[row] for row in part} for part in parts] == [{"a"}, {"a"}, {"b"}, {"b"}]
    assert sorted(np.concatenate(parts)) == list(range(12))


def test_ranks_get_nearly_the_same_number_of_tokens() -> None:
    lengths = np.random.default_rng([1]).integers(10, 500, 64)
    sums = [lengths[own[0]].sum() for own in micro_batches(np.arange(64), lengths.tolist(), 4, Limit())]
    assert max(sums) / min(sums) < 1.05


def test_the_budget_decides_how_many_layers_are_computed_again() -> None:
    whole = layer_bytes(100, SIZES)
    assert whole == 2 * 4400 * 100
    assert recomputed_layers(whole, 100, SIZES) == 0
    deep = replace(SIZES, layers=12)
    count = recomputed_layers(0.5 * layer_bytes(100, deep), 100, deep)
    assert 0 < count < 12
    assert layer_bytes(100, deep, count) <= 0.5 * layer_bytes(100, deep) < layer_bytes(100, deep, count - 1)
    assert recomputed_layers(1.0, 100, deep) == 12
    assert tokens_within(whole, SIZES) == 100


@pytest.mark.run
@pytest.mark.parametrize("way", ["plain", "packed"])
def test_a_small_budget_gives_the_same_fit(way: str) -> None:
    results = []
    for budget in (None, 30_000.0):
        scorer = ResponseScorer(tiny_llama(3), way)  # type: ignore[arg-type]
        texts = list(dict.fromkeys(texts_of(ROWS)))
        columns = FrozenColumns(dict(zip(texts, score_texts(scorer, texts).tolist(), strict=True)), {})
        settings = FitSettings(
            steps=4,
            learning_rate=1e-4,
            batch_pairs=6,
            support=0.0,
            activation_gib=None if budget is None else budget / 2**30,
        )
        engine = TorchEngine(scorer)
        engine.begin(settings)
        objective = Objective("reward", PolicyVersion(0, "reference", "", ""), 0.3)
        results.append(run_fit(engine, objective, ROWS, columns, settings, seed=1).as_metrics())
        limit = micro_batch_limit(scorer, ROWS, settings)
        assert (limit.tokens is None) == (budget is None)
    for name, value in results[0].items():
        assert results[1][name] == pytest.approx(value, rel=1e-3, abs=1e-6), name


def small_gpt2() -> GPT2LMHeadModel:
    """Its list of layers is called `h`."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=2, n_positions=32)).eval()


@pytest.mark.parametrize(
    ("model", "inside"), [(tiny_llama(3), "model.layers.0.self_attn"), (small_gpt2(), "transformer.h.0.attn")]
)
def test_layers_are_really_computed_again_and_let_go_of(model: nn.Module, inside: str) -> None:
    scorer = ResponseScorer(model, "plain")
    calls = []
    model.get_submodule(inside).register_forward_hook(lambda *_: calls.append(1))
    for layers, expected in ((1, 2), (0, 1)):
        scorer.recompute(layers)
        calls.clear()
        scorer.log_probs([((1, 9), (4, 2))])[0].sum().backward()
        assert len(calls) == expected


@pytest.mark.run
def test_the_fused_optimiser_takes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for fused_from in (10**9, 0):
        monkeypatch.setattr("pddpo_ray.training.engine.FUSED_FROM", fused_from)
        scorer = ResponseScorer(tiny_llama(3), "plain")
        columns = FrozenColumns(dict.fromkeys(texts_of(ROWS), -20.0), {})
        settings = FitSettings(steps=3, learning_rate=1e-3, batch_pairs=4, support=0.0)
        engine = TorchEngine(scorer)
        engine.begin(settings)
        objective = Objective("reward", PolicyVersion(0, "reference", "", ""), 0.3)
        made.append(run_fit(engine, objective, ROWS, columns, settings, seed=1).as_metrics())
    for name, value in made[0].items():
        assert made[1][name] == pytest.approx(value, rel=1e-3, abs=1e-6), name


@pytest.mark.run
def test_a_weighted_row_counts_as_often_as_its_copies() -> None:
    """One whole-batch step on a row of weight 3 is the step on three copies of it."""
    made = []
    for rows in ([*ROWS[:2], replace(ROWS[2], weight=3.0)], [*ROWS[:2], *[ROWS[2]] * 3]):
        scorer = ResponseScorer(tiny_llama(3), "plain")
        texts = list(dict.fromkeys(texts_of(rows)))
        columns = FrozenColumns(dict.fromkeys(texts, -20.0), {})
        settings = FitSettings(steps=1, learning_rate=1e-3, batch_pairs=8, support=0.0, max_grad_norm=1e9)
        engine = TorchEngine(scorer)
        engine.begin(settings)
        made.append(
            run_fit(
                engine, Objective("reward", PolicyVersion(0, "r", "", ""), 0.3), rows, columns, settings, seed=1
            ).as_metrics()
        )
    assert made[0]["fit/loss"] == pytest.approx(made[1]["fit/loss"], rel=1e-5)
    assert made[0]["fit/gradient_norm"] == pytest.approx(made[1]["fit/gradient_norm"], rel=1e-4)


def test_memory_by_hand_for_a_7b_model() -> None:
    """Numbers of the usual 7B shape; full training in bfloat16 with AdamW holds 18 bytes per parameter:
    weight, float32 gradient, master and two moments. ZeRO keeps gradients in bfloat16."""
    seven = Sizes(layers=32, width=2, layer=51.5 * 4096, input=2.0 * 4096)
    full = memory_need(parameters=6_738_000_000, trained=6_738_000_000, vocabulary=32_000, sizes=seven, tokens=4096)
    assert full["weights"] + full["gradients"] + full["optimizer"] == 18 * 6_738_000_000
    sharded = memory_need(
        parameters=6_738_000_000, trained=6_738_000_000, vocabulary=32_000, sizes=seven, tokens=4096, stage=1
    )
    assert sharded["gradients"] == 2 * 6_738_000_000
    assert full["activations"] == 4096 * 32 * 51.5 * 4096
    lora = memory_need(parameters=6_738_000_000, trained=40_000_000, vocabulary=32_000, sizes=seven, tokens=4096)
    assert (lora["weights"] + lora["gradients"] + lora["optimizer"]) / 1e9 == pytest.approx(14.0, abs=0.3)
    assert lora["head"] < 0.1 * 10 * 32_000 * 4096
    budget = memory_need(
        parameters=6_738_000_000, trained=40_000_000, vocabulary=32_000, sizes=seven, tokens=4096,
        activation_budget=8e9,
    )  # fmt: skip
    assert budget["activations"] == 8e9


def test_memory_by_hand_for_adapters_over_a_7b_base_in_four_bits() -> None:
    """32 layers of 4 x 4,096 x 4,096 + 3 x 4,096 x 11,008 numbers are in NF4; embedding, head and 65 norms are not.

    4 bits: 3,238,002,688 bytes; a byte for 64 numbers: 101,187,584; 4 bytes for 64 x 256: 1,581,056."""
    maps, others = 32 * 202_375_168, 2 * 32_000 * 4096 + 65 * 4096
    assert maps + others == 6_738_415_616
    seven = Sizes(layers=32, width=2, layer=46.0 * 4096, input=2.0 * 4096)
    need = memory_need(
        parameters=maps + others, trained=39_976_960, vocabulary=32_000, sizes=seven, tokens=1024, in_nf4=maps
    )
    assert need["weights"] == 3_238_002_688 + 101_187_584 + 1_581_056 + 2 * 262_410_240
    assert (need["gradients"], need["optimizer"]) == (4 * 39_976_960, 12 * 39_976_960)
    assert need["a layer out of NF4"] == 2 * 202_375_168
    assert sum(need.values()) / 2**30 == pytest.approx(10.4, abs=0.1)
