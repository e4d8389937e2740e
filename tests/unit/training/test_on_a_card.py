"""What a fit asks of a GPU, counted on meta tensors: nothing is read within a step, nothing mixes both sides.

Figures of launches are upper bounds: on a CPU build attention is taken apart, on CUDA it is one kernel.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.launches import begun_engine, drawn_rows, pass_over
from bench.planned_memory import made
from bench.simulated_card import SimulatedCard
from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.records import Objective, PairRow, Prompt, Response
from pddpo_ray.rollout.transformers_engine import TransformersEngine
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.device import PASS_TOKENS, chunk_rows
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.local import LocalTrainer, store_reference
from pddpo_ray.training.models.lora import add_adapters
from pddpo_ray.training.passes.log_probs import ResponseScorer, passes
from tests.support.tiny_language_model import save_policy, tiny_llama

LAYERS = 2
SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 90,
    "num_hidden_layers": LAYERS,
}  # fmt: skip
RANKS = {"full": None, "lora": 4}


def rows(count: int) -> list[PairRow]:
    return drawn_rows(count, (3, 20))


def step(kind: str, pairs: int, supports: bool) -> SimulatedCard:
    """Forward and backward pass of one micro-batch, its supports in four words a token."""
    return pass_over(begun_engine(SHAPE, RANKS[kind]), rows(pairs), supports)


@pytest.mark.parametrize("supports", [True, False])
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_the_host_reads_nothing_within_a_step_and_launches_do_not_grow_with_the_pairs(
    kind: str, supports: bool
) -> None:
    few, many = step(kind, 4, supports), step(kind, 64, supports)
    assert few.reads == many.reads == 0
    assert few.writes == many.writes == 2, "whole numbers and real ones: one copy each"
    assert few.launches == many.launches
    atomic = [
        name for name in many.kernels if name in ("index_add_", "index_put", "_index_put_impl_", "index_backward")
    ]
    # the sums over an answer's tokens, and gradients of embeddings: none within a layer
    assert sum(many.kernels[name] for name in atomic) <= 4


def test_adapters_compute_in_the_type_of_the_model() -> None:
    """Casts are those of norms and rotary positions and of gradients for masters: none of an adapted map's input."""
    full, lora = step("full", 4, False), step("lora", 4, False)
    narrow = (torch.bfloat16, torch.float32)
    of_masters = sum(parameter.requires_grad for parameter in made(SHAPE, 4, torch.bfloat16).parameters())
    of_all = len(list(made(SHAPE, None, torch.bfloat16).parameters()))
    assert lora.casts[narrow] - of_masters <= full.casts[narrow] - of_all
    adapted = add_adapters(tiny_llama(3).bfloat16(), rank=4, alpha=8.0)
    assert all(parameter.dtype == torch.bfloat16 for parameter in adapted.parameters())


@pytest.mark.full
@pytest.mark.run
def test_a_whole_fit_a_scoring_and_a_delivery_read_no_more_than_they_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two reads a step (its norm; loss, accuracy and mass off the support), one a pass of texts and what they need, and
    the trained weights once, beside the sample of them by which a fit's moved share is known."""
    # torch fuses no step of meta tensors
    monkeypatch.setattr("pddpo_ray.training.engine.FUSED_FROM", 10**9)
    store = ArtifactStore(tmp_path / "store")
    reference = store_reference(store, save_policy(tmp_path / "model", seed=4))
    with torch.device("meta"):
        model = tiny_llama(4)
    trainer = LocalTrainer(TorchEngine(ResponseScorer(model, "packed")), store, reference)
    given = tuple(rows(6))
    numbers = sum(parameter.numel() for parameter in model.parameters())
    reads = {}
    for steps in (2, 6):
        settings = FitSettings(steps=steps, batch_pairs=4, micro_pairs=1, support=0.0)
        command = FitCommand(
            steps, Start(reference), Objective("reward", reference, 0.1), given, settings, 3, f"reward-{steps}"
        )
        with SimulatedCard() as card:
            result = trainer.execute(command)
        reads[steps] = card.reads
        assert card.bytes_read <= 4 * numbers * 1.1 + 4 * numbers + 10_000
    assert reads[6] - reads[2] <= 2 * 4
    answers = [Response(row.id, Prompt("p", row.prompt, ""), row.chosen, "", 0, 0) for row in given]
    with SimulatedCard() as card:
        trainer.log_probs(result.version, answers)
        trainer.features(answers)
    assert card.reads == 2
    engine = TransformersEngine("on-card", store.folder(reference.path), store, device="meta")
    with SimulatedCard() as card:
        delivery = engine.deliver(result.version)
    assert (card.reads, card.writes) == (0, len(list(model.parameters())))
    assert delivery.sha256 == result.version.sha256


def test_passes_are_as_large_as_the_device_wants_in_tokens() -> None:
    """10,000 texts of 200 tokens; and chunks of the head at which a product is not bound by reading it."""
    texts = [((1 + index % 7,) * 20, (2,) * 180) for index in range(10_000)]
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    for kind, device in (("cpu", "cpu"), ("cuda", "meta")):
        with torch.device(device):
            scorer = ResponseScorer(LlamaForCausalLM(LlamaConfig(vocab_size=9, **shape)), "packed")
        made = list(passes(scorer, texts))
        np.testing.assert_array_equal(np.sort(np.concatenate(made)), np.arange(10_000))
        assert len(made) <= 1.1 * 180 * 10_000 / PASS_TOKENS[kind]
    assert all(1024 <= chunk_rows(words, "cuda") <= 2048 for words in (32_000, 49_152, 128_256, 152_064))
    assert chunk_rows(32_000, "cpu") == 262
