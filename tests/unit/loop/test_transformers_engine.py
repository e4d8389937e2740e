"""The engine of those who have no vLLM: what a batch of texts of different lengths gives is what each gives alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, LlamaConfig, PretrainedConfig

from pddpo_ray.records import Decoding, Prompt
from pddpo_ray.rollout.transformers_engine import TransformersEngine
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.seeds import draw_seeds
from pddpo_ray.training import progress
from pddpo_ray.training.local import store_reference
from tests.support.tiny_language_model import word_tokenizer

WORDS = 88
ENDS = [2, *range(60, 75)]
"""So many that some answers end before others."""
COMMON: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.25,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": ENDS,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "rotary": LlamaConfig(**COMMON),
    "absolute": GPT2Config(
        vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.25, eos_token_id=ENDS
    ),
    "sliding": Gemma2Config(**COMMON, head_dim=8, sliding_window=8),
}
LENGTHS = (3, 11, 3, 7, 24, 7, 5, 16, 2, 9, 30, 4)
PROMPTS = [Prompt(f"p{i}", (1, *(4 + (i * 7 + j * j) % 80 for j in range(n - 1))), "") for i, n in enumerate(LENGTHS)]
DECODING = Decoding(max_tokens=20)

Pair = tuple[TransformersEngine, Any]


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """An engine and the model that it holds."""
    root = tmp_path_factory.mktemp(request.param)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(CONFIGS[request.param]).eval()
    model.save_pretrained(root / "model")
    word_tokenizer().save_pretrained(root / "model")
    store = ArtifactStore(root / "artifacts")
    engine = TransformersEngine("fallback", root / "model", store)
    engine.deliver(store_reference(store, root / "model"))
    return engine, model


def logits_of(model: Any, text: tuple[int, ...]) -> torch.Tensor:
    """After every token, of one text without padding. -> [T, V]"""
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([text])).logits[0]
    return logits


def log_prob(model: Any, prompt: Prompt, answer: tuple[int, ...]) -> float:
    table = torch.log_softmax(logits_of(model, (*prompt.token_ids, *answer)).double(), dim=-1)
    begin = len(prompt.token_ids) - 1
    return sum(float(table[begin + i, token]) for i, token in enumerate(answer))


def test_log_probs_of_prompts_of_different_lengths_are_those_without_padding(pair: Pair) -> None:
    engine, model = pair
    draws = engine.sample(PROMPTS, range(len(PROMPTS)), 2, DECODING)
    answers = [(prompt, draw) for prompt, own in zip(PROMPTS, draws, strict=True) for draw in own]
    expected = [log_prob(model, prompt, ids) for prompt, (ids, _, _) in answers]
    assert len({len(ids) for _, (ids, _, _) in answers}) > 3
    np.testing.assert_allclose([stated for _, (_, _, stated) in answers], expected, atol=1e-4)
    scores = engine.score([prompt for prompt, _ in answers], [ids for _, (ids, _, _) in answers])
    np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_an_empty_answer_has_log_probability_zero(pair: Pair) -> None:
    engine, model = pair
    scores = engine.score(PROMPTS[:2], [(), (5, 6)])
    np.testing.assert_allclose(scores, [0.0, log_prob(model, PROMPTS[1], (5, 6))], atol=1e-4)


def test_every_draw_is_the_one_that_its_seed_gives_to_its_prompt_alone(pair: Pair) -> None:
    """The race by hand, a whole forward pass per token: generator, noise and words as of one answer by itself."""
    engine, model = pair
    decoding = Decoding(temperature=0.8, max_tokens=6)
    draws = engine.sample(PROMPTS, range(100, 100 + len(PROMPTS)), 2, decoding)
    for number, (prompt, own) in enumerate(zip(PROMPTS, draws, strict=True)):
        for seed, (ids, _, _) in zip(draw_seeds(100 + number, 2), own, strict=True):
            generator, text = torch.Generator().manual_seed(seed), prompt.token_ids
            for token in ids:
                chances = torch.softmax(logits_of(model, text)[-1] / 0.8, dim=-1)
                assert token == int((chances / torch.empty(WORDS).exponential_(generator=generator)).argmax())
                text = (*text, token)


def test_a_padded_prompt_keeps_the_policys_distribution(pair: Pair) -> None:
    """First words of 3,000 draws beside a longer prompt, against exact probabilities: chi-square, 1 in 10,000."""
    engine, model = pair
    draws = engine.sample([PROMPTS[0], PROMPTS[3]], [5, 6], [3000, 1], Decoding(max_tokens=1))[0]
    counts = np.bincount([ids[0] for ids, _, _ in draws], minlength=WORDS)
    exact = torch.softmax(logits_of(model, PROMPTS[0].token_ids)[-1].double(), dim=-1).numpy()
    often = exact > 5 / len(draws)
    seen, expected = np.append(counts[often], counts[~often].sum()), np.append(exact[often], exact[~often].sum())
    statistic = float(((seen - 3000 * expected) ** 2 / (3000 * expected)).sum())
    freedom = len(seen) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom) + 10


def test_answers_of_all_lengths_are_written_together_and_leave_when_they_end(pair: Pair) -> None:
    """Tokens that the model reads: little padding for the prompts, each once, then one for each word but the last."""
    engine, _ = pair
    shapes: list[tuple[int, ...]] = []
    model = engine._model
    watching = model.register_forward_pre_hook(
        lambda _, __, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    draws = engine.sample(PROMPTS, range(len(PROMPTS)), 3, DECODING)
    watching.remove()
    answers = [ids for own in draws for ids, _, _ in own]
    written = [lines for lines, width in shapes if width == 1]
    assert len(written) == max(map(len, answers)) - 1
    assert sum(written) == sum(len(ids) - 1 for ids in answers)
    assert sum(lines for lines, width in shapes if width > 1) == len(PROMPTS)


def test_long_answers_say_how_far_they_are(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "TELL_EVERY_S", 0.0)
    with caplog.at_level("INFO", "pddpo_ray.training.progress"):
        draws = pair[0].sample(PROMPTS, range(len(PROMPTS)), 1, DECODING)
    longer = sum(len(ids) > 4 for ((ids, _, _),) in draws)
    assert 0 < longer < len(PROMPTS)
    assert f"fallback: {longer} of 12 answers go beyond token 4" in caplog.messages
