"""The packed way against the plain one: the same log-probabilities, losses and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from pddpo_ray.contracts import FitSettings
from pddpo_ray.records import Objective, PairRow, PolicyVersion
from pddpo_ray.training.batches import Text, texts_of
from pddpo_ray.training.engine import TorchEngine
from pddpo_ray.training.fit import FrozenColumns, run_fit
from pddpo_ray.training.passes.log_probs import ResponseScorer, mean_hidden, score_texts, support_of_texts
from pddpo_ray.training.passes.packing import Lines, Segments, can_pack, pack
from pddpo_ray.training.passes.response_head import SupportTable, _ResponseHead, response_log_probs
from tests.support.segment_attention import varlen_attn
from tests.support.tiers import in_full
from tests.support.tiny_language_model import tiny_llama

pytestmark = pytest.mark.slow

P, Q = (1, 9, 4), (1, 5)
TEXTS: list[Text] = [(P, (7, 8, 2)), (Q, (6, 2)), (P, (12, 13, 14, 15, 2)), (P, (2,)), (Q, (6, 7, 2)), (P, (7, 8, 2))]
ROWS = [PairRow(f"r{i}", P if i % 2 else Q, (7 + i, 8, 2), (9 + i % 3, 2)) for i in range(10)]


def both(seed: int = 3) -> tuple[ResponseScorer, ResponseScorer]:
    return ResponseScorer(tiny_llama(seed), "plain"), ResponseScorer(tiny_llama(seed), "packed")


def gradients(scorer: ResponseScorer) -> Mapping[str, torch.Tensor]:
    return {name: p.grad for name, p in scorer.model.named_parameters() if p.grad is not None}


def test_a_packed_row_holds_no_padding_and_every_prompt_and_text_once() -> None:
    batch = pack(TEXTS)
    assert batch.ids.shape[1] == len(P) + 3 + 5 + 1 + len(Q) + 2 + 3
    assert batch.texts == 5
    assert batch.copies.tolist() == [0, 1, 2, 3, 4, 0]
    responses = [word for _, response in dict.fromkeys(TEXTS) for word in response]
    assert batch.target.tolist() == responses
    assert batch.ids[0, batch.slot].tolist() == responses


def test_log_probs_supports_and_features_are_the_same_both_ways() -> None:
    plain, packed = both()
    np.testing.assert_allclose(score_texts(packed, TEXTS), score_texts(plain, TEXTS), atol=1e-4)
    np.testing.assert_allclose(mean_hidden(packed, TEXTS), mean_hidden(plain, TEXTS), atol=1e-4)
    expected, supports = support_of_texts(plain, TEXTS, floor=0.01)
    found, same = support_of_texts(packed, TEXTS, floor=0.01)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    for one, other in zip(supports, same, strict=True):
        np.testing.assert_array_equal(one.counts, other.counts)
        np.testing.assert_array_equal(one.words, other.words)


@pytest.mark.parametrize("with_support", [False, True])
def test_losses_and_gradients_are_the_same_both_ways(with_support: bool) -> None:
    plain, packed = both()
    supports = support_of_texts(plain, TEXTS, 0.01)[1] if with_support else None
    shares = torch.linspace(-1, 1, len(TEXTS))
    for scorer in (plain, packed):
        total, supported, counts = scorer.log_probs(TEXTS, supports)
        loss = (torch.tanh(total / 20) * shares).sum()
        if supported is not None and counts is not None:
            loss = loss - (supported * counts).sum()
        loss.backward()
    expected, found = gradients(plain), gradients(packed)
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=2e-4, rtol=1e-3, msg=name)


@pytest.fixture
def segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed models attend over segments, as on a GPU."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    monkeypatch.setattr("pddpo_ray.training.passes.log_probs.attends_ragged", lambda device, dtype: True)


@pytest.mark.parametrize("key_heads", [2, 4])
@pytest.mark.usefixtures("segments")
def test_segments_give_the_same_losses_and_gradients(key_heads: int) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "initializer_range": 0.3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": key_heads}
    torch.manual_seed(0)
    plain = LlamaForCausalLM(LlamaConfig(vocab_size=60, max_position_embeddings=64, **sizes, **heads)).eval()
    scorers = ResponseScorer(plain, "plain"), ResponseScorer(deepcopy(plain), "packed")
    assert isinstance(scorers[1].packed(TEXTS).lines, Segments)
    for scorer in scorers:
        (torch.tanh(scorer.log_probs(TEXTS)[0] / 20) * torch.linspace(-1, 1, len(TEXTS))).sum().backward()
    expected, found = map(gradients, scorers)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=2e-4, rtol=1e-3, msg=name)


@pytest.mark.parametrize("wrong", ["raises", "aligned at the first key"])
@pytest.mark.usefixtures("segments")
def test_a_kernel_that_does_not_serve_leaves_lines(
    wrong: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *segments: Any, **_: Any) -> torch.Tensor:
        if wrong == "raises":
            raise RuntimeError("no kernel for this card")
        return query

    assert ResponseScorer(tiny_llama(0)).packed(TEXTS).lines.longest == 8
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    scorer = ResponseScorer(tiny_llama(0))
    assert scorer.layout == "packed"
    assert isinstance(scorer.packed(TEXTS).lines, Lines)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "attention gets lines that are filled up" in line
    assert ("no kernel for this card" if wrong == "raises" else "it differs by") in line


def test_attention_on_a_gpu_makes_no_line_that_is_filled_up() -> None:
    """Counted on the meta device: no operation of a pass reads or writes as many rows as padded lines have."""
    with torch.device("meta"):
        scorer = ResponseScorer(tiny_llama(0).to(torch.bfloat16), "packed", device="cuda")
    texts = [((1, 2, 3), tuple(range(3, 3 + length))) for length in (2, 3, 4, 50)]
    rows: set[int] = set()

    class Shapes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            rows.update(size for one in tree_leaves(made) if isinstance(one, torch.Tensor) for size in one.shape)
            return made

    with Shapes():
        scorer.log_probs(texts)[0].sum().backward()
    assert not rows & {len(texts) * 53, 53}


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(3, 20), min_size=1, max_size=6)), min_size=1, max_size=9)
)
def test_any_texts_get_the_log_probability_they_have_alone(drawn: list[tuple[int, list[int]]]) -> None:
    prompts = [(1, 4), (1, 4, 5, 6, 7), (9,)]
    texts: list[Text] = [(prompts[index], tuple(words)) for index, words in drawn]
    plain, packed = SCORERS
    alone = np.concatenate([score_texts(plain, [text]) for text in texts])
    np.testing.assert_allclose(score_texts(packed, texts), alone, atol=2e-4)


SCORERS = both(5)


def test_a_whole_fit_takes_the_same_steps_both_ways() -> None:
    losses = []
    for scorer in both():
        texts = list(dict.fromkeys(texts_of(ROWS)))
        log_probs, supports = support_of_texts(scorer, texts, 0.01)
        columns = FrozenColumns(dict(zip(texts, log_probs, strict=True)), dict(zip(texts, supports, strict=True)))
        fit = FitSettings(steps=6, learning_rate=1e-4, batch_pairs=4, micro_pairs=3, support=0.5)
        engine = TorchEngine(scorer)
        engine.begin(fit)
        objective = Objective("reward", PolicyVersion(0, "reference", "", ""), 0.3)
        losses.append(run_fit(engine, objective, ROWS, columns, fit, seed=1).as_metrics())
    for name, value in losses[0].items():
        assert losses[1][name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("way", ["plain", "packed"])
@pytest.mark.parametrize("noise", [-1e-5, *in_full(0.0, 1e-5)])
def test_a_fit_whose_margins_are_rounding_is_right_half_the_time(way: str, noise: float) -> None:
    """At the first step the policy is the start, so every margin is 0 but for rounding, whichever sign that has."""
    scorer = ResponseScorer(tiny_llama(3), way)  # type: ignore[arg-type]
    chosen = [(row.prompt, row.chosen) for row in ROWS]
    texts = list(dict.fromkeys(texts_of(ROWS)))
    base = dict(zip(texts, score_texts(scorer, texts).tolist(), strict=True))
    columns = FrozenColumns({text: value - noise * (text in chosen) for text, value in base.items()}, {})
    fit = FitSettings(steps=1, learning_rate=1e-4, batch_pairs=len(ROWS), micro_pairs=3, support=0.0)
    engine = TorchEngine(scorer)
    engine.begin(fit)
    metrics = run_fit(
        engine, Objective("reward", PolicyVersion(0, "reference", "", ""), 0.3), ROWS, columns, fit, 1
    ).as_metrics()
    assert metrics["fit/accuracy"] == pytest.approx(0.5)


@pytest.mark.parametrize("grouped", [False, True])
def test_other_models_pack_too(grouped: bool) -> None:
    """Llama with shared key heads; Qwen2 with biases and tied embeddings."""
    sizes = {
        "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.3,
    }  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes)) if grouped else Qwen2ForCausalLM(
        Qwen2Config(**sizes, tie_word_embeddings=True)
    )  # fmt: skip
    expected = score_texts(ResponseScorer(model.eval(), "plain"), TEXTS)
    np.testing.assert_allclose(score_texts(ResponseScorer(model, "packed"), TEXTS), expected, atol=2e-4)


def test_a_model_that_was_switched_still_scores_padded_batches_as_before() -> None:
    model = tiny_llama(3)
    before = score_texts(ResponseScorer(model, "plain"), TEXTS)
    ResponseScorer(model, "packed")
    np.testing.assert_array_equal(score_texts(ResponseScorer(model, "plain"), TEXTS), before)


def test_the_way_is_chosen_by_size_and_by_what_the_layers_allow() -> None:
    assert ResponseScorer(tiny_llama(0, hidden=32, heads=1)).layout == "plain"
    assert ResponseScorer(tiny_llama(0)).layout == "packed"
    windowed = Qwen2Config(
        vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, use_sliding_window=True, sliding_window=4, max_window_layers=1,
    )  # fmt: skip
    assert not can_pack(Qwen2ForCausalLM(windowed))


@pytest.mark.parametrize("keep", [True, *in_full(False)])
@pytest.mark.parametrize("temperature", [0.7, *in_full(1.0)])
def test_the_chunked_head_has_the_derivatives_of_the_formula(
    keep: bool, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Central differences in float64, with several chunks, kept and computed again."""
    monkeypatch.setattr("pddpo_ray.training.device.CHUNK_BYTES", 0)
    monkeypatch.setattr("pddpo_ray.training.passes.response_head.KEEP_BYTES", 10**6 if keep else 0)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(40, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.randint(7, (40,), generator=generator)
    index = SupportTable.of(np.full(40, 3), np.tile([0, 2, 5], 40))
    assert torch.autograd.gradcheck(
        lambda h, w: _ResponseHead.apply(h, w, target, index, temperature), (hidden, weight)
    )
    tokens, mass = response_log_probs(hidden, weight, target, index, temperature)
    log_softmax = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    torch.testing.assert_close(tokens, log_softmax[torch.arange(40), target])
    torch.testing.assert_close(mass, torch.logsumexp(log_softmax[:, [0, 2, 5]], dim=-1))


def test_a_frozen_head_needs_no_second_pass() -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    hidden = torch.randn(9, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.randint(7, (9,), generator=generator)
    assert torch.autograd.gradcheck(lambda h: response_log_probs(h, weight, target)[0], (hidden,))


def test_the_gradient_of_a_narrow_head_over_many_chunks_is_summed_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 chunks in bfloat16 against float64 of the same rounded numbers: within 1 %."""
    monkeypatch.setattr("pddpo_ray.training.device.CHUNK_BYTES", 0)
    generator = torch.Generator().manual_seed(1)
    narrow = [torch.randn(size, generator=generator).bfloat16().requires_grad_() for size in ((1024, 32), (50, 32))]
    target = torch.randint(50, (1024,), generator=generator)
    exact = [tensor.detach().double().requires_grad_() for tensor in narrow]
    for hidden, weight in (narrow, exact):
        response_log_probs(hidden, weight, target)[0].sum().backward()
    found, expected = narrow[1].grad, exact[1].grad
    assert found is not None
    assert expected is not None
    off = (found.double() - expected).norm() / expected.norm()
    assert float(off) < 0.01
