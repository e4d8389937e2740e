"""The real vLLM engine on a tiny Llama: draws, log-probabilities, deliveries, and those that must be refused.

The engine is this file's own: it starts without weights and with further tokens that end an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pddpo_ray.errors import RunError
from pddpo_ray.records import Decoding, PolicyVersion, Prompt, Response
from pddpo_ray.rollout.checkpoint import tokenizer_fingerprint
from pddpo_ray.rollout.delivery_check import DeliveryCheck, verify
from pddpo_ray.rollout.transformers_engine import TransformersEngine
from pddpo_ray.storage.artifacts import ArtifactStore
from tests.support.engine_process import vllm_process
from tests.support.tiers import in_full
from tests.support.tiny_language_model import WORDS, save_policy, tiny_llama, word_tokenizer

pytestmark = pytest.mark.vllm

PROMPTS = [Prompt(f"p{i}", (1, 4 + 3 * i, 9 + i, 12), f"prompt {i}") for i in range(6)]
DECODING = Decoding(max_tokens=16)
FURTHER_ENDS = (40, 41, 42, 43)
"""Words that end an answer by `generation_config.json` alone."""


@dataclass
class Bench:
    """A started engine, its store, and models whose weights the test knows."""

    engine: Any
    store: ArtifactStore
    reference: Path

    def version(self, number: int, seed: int, change: Any = None, tokenizer: Any = None) -> PolicyVersion:
        model = tiny_llama(seed)
        tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if change:
            change(tensors)

        def fill(folder: Path) -> None:
            model.config.save_pretrained(folder)
            (tokenizer or word_tokenizer()).save_pretrained(folder)

        path, sha256 = self.store.write_tensors(f"policy-{number}", tensors, fill=fill)
        return PolicyVersion(number, f"policy-{number}", sha256, path)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("engine")
    reference = save_policy(root / "reference", seed=0)
    (reference / "model.safetensors").unlink()  # an engine starts before there are weights
    (reference / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, *FURTHER_ENDS]}))
    store = ArtifactStore(root / "artifacts")
    with vllm_process("rollout-0", reference, store) as engine:
        yield Bench(engine, store, reference)


def log_probs(seed: int, responses: list[Response]) -> np.ndarray:
    """Sums of token log-probabilities by a plain forward pass in float32, added up in float64."""
    model = tiny_llama(seed)
    totals = []
    for response in responses:
        ids = torch.tensor([[*response.prompt.token_ids, *response.token_ids]])
        with torch.no_grad():
            table = torch.log_softmax(model(input_ids=ids).logits[0].float(), dim=-1).double()
        begin = len(response.prompt.token_ids) - 1
        totals.append(sum(float(table[begin + i, token]) for i, token in enumerate(response.token_ids)))
    return np.array(totals)


def responses_of(draws: list[list[Any]]) -> list[Response]:
    return [
        Response(f"{i}-{j}", prompt, tuple(ids), text, 1, 0, log_prob)
        for i, (prompt, answers) in enumerate(zip(PROMPTS, draws, strict=True))
        for j, (ids, text, log_prob) in enumerate(answers)
    ]


def canaries() -> list[Response]:
    rng = np.random.default_rng(5)
    return [
        Response(f"c{i}", prompt, tuple(int(t) for t in rng.integers(4, 4 + len(WORDS), 12)), "", 0, 0)
        for i, prompt in enumerate(PROMPTS)
    ]


def test_an_engine_without_a_delivery_refuses_to_sample(bench: Bench) -> None:
    fresh = TransformersEngine("rollout-1", bench.reference, bench.store)
    with pytest.raises(RunError, match="rollout-1 holds no policy"):
        fresh.sample(PROMPTS, range(6), 1, DECODING)


def test_log_probs_of_draws_and_scores_equal_a_plain_forward_pass(bench: Bench) -> None:
    bench.engine.deliver(bench.version(1, seed=11))
    answers = responses_of(bench.engine.sample(PROMPTS, range(6), 3, Decoding(temperature=0.7, max_tokens=16)))
    expected = log_probs(11, answers)
    assert [answer.log_prob for answer in answers] == pytest.approx(list(expected), abs=1e-3)
    scores = bench.engine.score([a.prompt for a in answers], [a.token_ids for a in answers])
    np.testing.assert_allclose(scores, expected, atol=1e-3)
    assert all(answer.token_ids[-1] in (2, *FURTHER_ENDS) or len(answer.token_ids) == 16 for answer in answers)
    assert all(answer.text == word_tokenizer().decode(answer.token_ids, skip_special_tokens=True) for answer in answers)


@pytest.fixture(scope="module")
def fallback(bench: Bench) -> TransformersEngine:
    return TransformersEngine("fallback", bench.reference, bench.store, batch_size=5)


@pytest.fixture(params=["vllm", *in_full("transformers")])
def engine(request: pytest.FixtureRequest, bench: Bench, fallback: TransformersEngine) -> Any:
    engine = bench.engine if request.param == "vllm" else fallback
    engine.deliver(bench.version(1, seed=11))
    return engine


def test_a_draw_depends_on_its_seed_and_not_on_the_batch(engine: Any) -> None:
    together = engine.sample(PROMPTS, [7, 8, 9, 10, 11, 12], 4, DECODING)
    backwards = engine.sample(PROMPTS[::-1], [12, 11, 10, 9, 8, 7], 4, DECODING)[::-1]
    alone = [engine.sample([prompt], [7 + i], 4, DECODING)[0] for i, prompt in enumerate(PROMPTS)]
    ids = [[draw[0] for draw in draws] for draws in together]
    assert ids == [[draw[0] for draw in draws] for draws in backwards]
    assert ids == [[draw[0] for draw in draws] for draws in alone]
    each = [1, 4, 2, 0, 3, 4]
    uneven = engine.sample(PROMPTS, [7, 8, 9, 10, 11, 12], each, DECODING)
    expected = [draws[:count] for draws, count in zip(ids, each, strict=True)]
    assert [[draw[0] for draw in draws] for draws in uneven] == expected
    assert ids != [[d[0] for d in draws] for draws in engine.sample(PROMPTS, [1, 2, 3, 4, 5, 6], 4, DECODING)]
    assert len({tuple(draw) for draws in ids for draw in draws}) > 20


def test_an_answer_ends_with_whatever_the_models_files_name_as_its_end(engine: Any) -> None:
    draws = [draw[0] for group in engine.sample(PROMPTS, range(6), 20, DECODING) for draw in group]
    ends = {2, *FURTHER_ENDS}
    assert {ids[-1] for ids in draws} & set(FURTHER_ENDS), "the end belongs to the answer"
    assert all(ids[-1] in ends or len(ids) == DECODING.max_tokens for ids in draws)
    assert not any(set(ids[:-1]) & ends for ids in draws)


def test_prompts_of_a_batch_may_be_longer_together_than_one_step_of_the_engine(engine: Any) -> None:
    """90 prompts of 60 tokens: the 69th does not fit into the 4,096 tokens that vLLM takes into one step."""
    prompts = [Prompt(f"long-{i}", tuple(4 + (i * 7 + j * j) % 20 for j in range(60)), "") for i in range(90)]
    together = engine.sample(prompts, range(90), 1, Decoding(max_tokens=4))
    alone = [engine.sample([prompts[i]], [i], 1, Decoding(max_tokens=4))[0] for i in (0, 67, 68, 69, 89)]
    assert [together[i][0][0] for i in (0, 67, 68, 69, 89)] == [draws[0][0] for draws in alone]


@pytest.mark.parametrize("decoding", [Decoding(max_tokens=1), Decoding(temperature=1.5, top_p=0.7, max_tokens=1)])
def test_draws_follow_the_policys_distribution(engine: Any, decoding: Decoding) -> None:
    """First tokens of 2,000 draws against exact probabilities: chi-square over the 12 likeliest words and the rest."""
    draws = engine.sample([PROMPTS[0]] * 100, range(100), 20, decoding)
    counts = np.bincount([draw[0][0] for group in draws for draw in group], minlength=len(WORDS) + 4)
    with torch.no_grad():
        logits = tiny_llama(11)(input_ids=torch.tensor([PROMPTS[0].token_ids])).logits[0, -1].double()
    exact = nucleus(torch.softmax(logits / decoding.temperature, dim=-1).numpy(), decoding.top_p)
    assert counts[exact == 0].sum() == 0
    top = np.argsort(-exact)[:12]
    observed = np.append(counts[top], counts.sum() - counts[top].sum())
    expected = 2000 * np.append(exact[top], 1 - exact[top].sum())
    assert float(((observed - expected) ** 2 / expected).sum()) < 32.9  # 99.9 % of chi-square with 12 degrees


def nucleus(probabilities: np.ndarray, top_p: float) -> np.ndarray:
    """The likeliest words until their sum reaches top_p, scaled to one: the definition, in a loop."""
    kept, total = np.zeros_like(probabilities), 0.0
    for word in np.argsort(-probabilities):
        if total >= top_p:
            break
        kept[word] = probabilities[word]
        total += probabilities[word]
    return kept / kept.sum()


def test_both_engines_take_over_the_same_weights(bench: Bench, fallback: TransformersEngine) -> None:
    policy = bench.version(2, seed=12)
    assert fallback.deliver(policy).sha256 == bench.engine.deliver(policy).sha256 == policy.sha256
    greedy = Decoding(temperature=0.0, max_tokens=16)
    ours, theirs = (engine.sample(PROMPTS, range(6), 1, greedy) for engine in (fallback, bench.engine))
    assert [group[0][0] for group in ours] == [group[0][0] for group in theirs]
    assert [group[0][1] for group in ours] == [group[0][1] for group in theirs]
    np.testing.assert_allclose([g[0][2] for g in ours], [g[0][2] for g in theirs], atol=1e-3)
    answers = canaries()
    np.testing.assert_allclose(
        fallback.score(PROMPTS, [a.token_ids for a in answers]), log_probs(12, answers), atol=1e-3
    )


def test_a_version_is_verified_and_the_next_one_takes_its_place(bench: Bench) -> None:
    delivery_check = DeliveryCheck(
        lambda policy, items: log_probs(10 + policy.number, list(items)),
        canaries(),
        tokenizer=tokenizer_fingerprint(bench.reference),
    )
    for number in (1, 2, 1):
        policy = bench.version(number, seed=10 + number)
        check = delivery_check(bench.engine, bench.engine.deliver(policy), policy)
        assert (check.version, bench.engine.version, check.sha256) == (number, number, policy.sha256)
        assert check.canary_difference < 1e-5
        assert check.canaries == 6


def verified(bench: Bench, policy: PolicyVersion, seed: int, tokenizer: str = "", **forged: Any) -> None:
    tokenizer = tokenizer or tokenizer_fingerprint(bench.reference)
    delivery = replace(bench.engine.deliver(policy), **forged)
    verify(
        bench.engine,
        delivery,
        policy,
        canaries(),
        log_probs(seed, canaries()),
        tokenizer=tokenizer,
    )


def test_stale_weights_under_a_new_number_are_refused_by_their_hash(bench: Bench) -> None:
    old, new = bench.version(1, seed=11), bench.version(2, seed=12)
    with pytest.raises(RunError, match=r"engine rollout-0, version 2 .*hash .*stale"):
        verified(bench, replace(new, path=old.path), seed=12)


def test_stale_weights_with_a_forged_hash_are_refused_by_the_canary(bench: Bench) -> None:
    old, new = bench.version(1, seed=11), bench.version(2, seed=12)
    with pytest.raises(RunError, match=r"engine rollout-0, version 2 .*canary"):
        verified(bench, replace(new, path=old.path), seed=12, sha256=new.sha256)


def test_a_missing_layer_is_refused_before_anything_is_loaded(bench: Bench) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("model.layers.1.")]:
            del tensors[name]

    bench.engine.deliver(bench.version(1, seed=11))
    with pytest.raises(RunError, match=r"engine rollout-0, version 3: 9 of 21 tensors are missing.*model\.layers\.1"):
        bench.engine.deliver(bench.version(3, seed=11, change=drop))
    with pytest.raises(RunError, match="holds no policy"):
        bench.engine.sample(PROMPTS, range(6), 1, DECODING)


def test_a_wrong_shape_and_a_foreign_tensor_are_refused(bench: Bench) -> None:
    def narrow(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.extra.weight"] = torch.zeros(2)

    with pytest.raises(RunError, match=r"version 4: model\.norm\.weight has shape \[63\], the model expects \[64\]"):
        bench.engine.deliver(bench.version(4, seed=11, change=narrow))
    with pytest.raises(RunError, match=r"version 4: 1 delivered tensors are not part of the model.*extra"):
        bench.engine.deliver(bench.version(4, seed=11, change=add))


def test_one_matrix_scaled_by_a_hundredth_is_refused_by_hash_and_by_canary(bench: Bench) -> None:
    def scale(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.mlp.down_proj.weight"] *= 1.01

    honest, altered = bench.version(5, seed=11), bench.version(5, seed=11, change=scale)
    with pytest.raises(RunError, match=r"engine rollout-0, version 5 .*altered weights"):
        verified(bench, replace(honest, path=altered.path), seed=11)
    with pytest.raises(RunError, match=r"engine rollout-0, version 5 .*canary"):
        verified(bench, altered, seed=11)


def test_a_swapped_tokenizer_is_refused(bench: Bench) -> None:
    swapped = word_tokenizer(WORDS[1:] + WORDS[:1])
    with pytest.raises(RunError, match=r"engine rollout-0, version 6: the tokenizer delivered"):
        bench.engine.deliver(bench.version(6, seed=11, tokenizer=swapped))
    with pytest.raises(RunError, match=r"engine rollout-0, version 7 .*tokenizer"):
        verified(bench, bench.version(7, seed=11), seed=11, tokenizer="0" * 64)
