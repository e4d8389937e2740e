"""The policy is softmax(logits / T): in the trainer, in both engines, in what is sampled and in gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM

from pddpo_lab.policy_gradient.update import per_token, token_log_probs
from pddpo_ray.config import load
from pddpo_ray.errors import UserError
from pddpo_ray.records import Decoding, PolicyVersion, Prompt
from pddpo_ray.rollout.transformers_engine import TransformersEngine
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.theory.losses.objectives import preference_loss
from pddpo_ray.training.local import load_trainer, store_reference
from pddpo_ray.training.models.lora import add_adapters
from pddpo_ray.training.passes.log_probs import ResponseScorer, Support, score_texts, support_of_texts
from tests.support.tiers import in_full
from tests.support.tiny_language_model import save_policy, tiny_llama

pytestmark = pytest.mark.slow

T = 0.7
TEXTS = [((1, 9, 4), (7, 8, 2)), ((1, 9, 4), (6, 2)), ((1, 5), (12, 13, 60, 2)), ((1, 5, 5, 8), (20, 2))]


def plain_log_probs(model: torch.nn.Module, text: tuple[tuple[int, ...], tuple[int, ...]]) -> torch.Tensor:
    """log softmax(logits / T) at each response token, from the whole model. -> [t]"""
    prompt, answer = text
    logits = model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0].double() / T
    rows = torch.arange(len(prompt) - 1, len(prompt) + len(answer) - 1)
    return torch.log_softmax(logits[rows], dim=-1)[torch.arange(len(answer)), torch.tensor(answer)]


def with_bias(model: torch.nn.Module) -> torch.nn.Module:
    """The same model with a head that has a bias, which a scale on hidden states would miss."""
    head = torch.nn.Linear(model.lm_head.in_features, model.lm_head.out_features)  # type: ignore[union-attr, arg-type]
    head.weight = model.lm_head.weight  # type: ignore[union-attr, assignment]
    torch.nn.init.uniform_(head.bias, -2, 2, generator=torch.Generator().manual_seed(0))
    model.lm_head = head
    return model


@pytest.mark.parametrize("layout", ["plain", "packed"])
@pytest.mark.parametrize("bias", [False, True])
def test_the_trainer_scores_the_divided_logits(layout: str, bias: bool) -> None:
    model = with_bias(tiny_llama(3)) if bias else tiny_llama(3)
    expected = [float(plain_log_probs(model, text).detach().sum()) for text in TEXTS]
    scorer = ResponseScorer(model, layout, T)  # type: ignore[arg-type]
    np.testing.assert_allclose(score_texts(scorer, TEXTS), expected, atol=1e-4)
    per = per_token(token_log_probs(scorer), TEXTS, torch.device("cpu"))
    if layout == "plain":
        np.testing.assert_allclose([tokens.sum() for tokens in per], expected, atol=1e-4)


@pytest.mark.parametrize("layout", ["plain", "packed"])
def test_the_support_is_what_the_policy_at_its_temperature_finds_plausible(layout: str) -> None:
    model = tiny_llama(3)
    log_probs, supports = support_of_texts(ResponseScorer(model, layout, T), TEXTS, 0.02)  # type: ignore[arg-type]
    np.testing.assert_allclose(
        log_probs, [float(plain_log_probs(model, text).detach().sum()) for text in TEXTS], atol=1e-4
    )
    for (prompt, answer), support in zip(TEXTS, supports, strict=True):
        logits = model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0] / T
        chances = torch.softmax(logits[len(prompt) - 1 : -1], dim=-1)
        assert support.counts.tolist() == (chances >= 0.02).sum(dim=1).tolist()


@pytest.mark.parametrize("layout", ["plain", "packed"])
@pytest.mark.parametrize("supported", [False, True])
@pytest.mark.parametrize("adapters", [False, *in_full(True)])
def test_the_gradient_is_that_of_the_plain_formula(layout: str, supported: bool, adapters: bool) -> None:
    """-log sigmoid(beta (h(chosen) - h(rejected))) with h = log softmax(logits / T) - base, by autograd."""
    model = tiny_llama(3)
    model = add_adapters(model, rank=4, alpha=8.0) if adapters else model
    if adapters:
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    base = torch.tensor([-9.0, -7.0])
    sums = torch.stack([plain_log_probs(model, text).sum() for text in TEXTS[:2]])
    loss = -torch.nn.functional.logsigmoid(0.3 * ((sums[0] - base[0]) - (sums[1] - base[1])))
    words = np.arange(4, 40, dtype=np.int32)
    if supported:
        for prompt, answer in TEXTS[:2]:
            logits = model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1].double() / T
            mass = torch.softmax(logits, dim=-1)[:, torch.from_numpy(words).long()].sum(dim=1).log()
            loss = loss - 0.5 * mass.sum()
    expected = torch.autograd.grad(loss, trained)

    scorer = ResponseScorer(model, layout, T)  # type: ignore[arg-type]
    supports = [Support(np.full(len(a), len(words)), np.tile(words, len(a))) for _, a in TEXTS[:2]]
    log_probs, own_mass, _ = scorer.log_probs(TEXTS[:2], supports if supported else None)
    ratios = log_probs - base
    ours = preference_loss(ratios[:1], ratios[1:], temperature=0.3)[0].sum()
    if own_mass is not None:
        ours = ours - 0.5 * own_mass.sum()
    for gradient, right in zip(torch.autograd.grad(ours, trained), expected, strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-3, atol=1e-5)


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, ArtifactStore, PolicyVersion]:
    folder = save_policy(tmp_path / "model", seed=3)
    store = ArtifactStore(tmp_path / "artifacts")
    return folder, store, store_reference(store, folder)


def test_trainer_and_transformers_engine_agree(stored: tuple[Path, ArtifactStore, PolicyVersion]) -> None:
    folder, store, reference = stored
    trainer = load_trainer(folder, store, reference, temperature=T)
    engine = TransformersEngine("e", folder, store, temperature=T)
    engine.deliver(reference)
    prompts = [Prompt("p", prompt, "") for prompt, _ in TEXTS]
    theirs = engine.score(prompts, [answer for _, answer in TEXTS])
    np.testing.assert_allclose(theirs, trainer.score(reference, TEXTS), atol=1e-4)
    for prompt, draws in zip(prompts, engine.sample(prompts, [5, 6, 7, 8], 3, Decoding(max_tokens=6)), strict=True):
        answers = [(prompt.token_ids, ids) for ids, _, _ in draws]
        np.testing.assert_allclose([value for _, _, value in draws], trainer.score(reference, answers), atol=1e-4)


@pytest.mark.parametrize(("relative", "absolute"), [(1.0, T), *in_full((1.2, 1.2 * T))])
def test_samples_follow_the_divided_logits(
    stored: tuple[Path, ArtifactStore, PolicyVersion], relative: float, absolute: float
) -> None:
    """First tokens of 4,000 draws against softmax(logits / T): a chi-square test with a fixed seed.

    The temperature of a decoding multiplies the policy's.
    """
    folder, store, reference = stored
    engine = TransformersEngine("e", folder, store, temperature=T)
    engine.deliver(reference)
    prompt = Prompt("p", (1, 9, 4), "")
    draws = engine.sample([prompt], [11], 4000, Decoding(temperature=relative, max_tokens=1))[0]
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[1, 9, 4]])).logits[0, -1].double()
    assert follows(draws, torch.softmax(logits / absolute, dim=-1).numpy()) > 0.01
    assert follows(draws, torch.softmax(logits, dim=-1).numpy()) < 1e-6


def follows(draws: list[tuple[tuple[int, ...], str, float]], chances: np.ndarray) -> float:
    """p value of the draws' first tokens; words that are expected fewer than five times are one class."""
    seen = np.bincount([ids[0] for ids, _, _ in draws], minlength=len(chances)).astype(float)
    expected = chances * len(draws)
    rare = expected < 5
    seen = np.append(seen[~rare], seen[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    return float(chisquare(seen, expected * seen.sum() / expected.sum()).pvalue)


def test_at_1_nothing_is_divided() -> None:
    """Bit for bit the numbers of a scorer without a temperature."""
    model = tiny_llama(3)
    hidden = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ResponseScorer(model, "plain").logits(hidden), model.lm_head(hidden))


def test_a_table_has_no_temperature_and_zero_is_none() -> None:
    with pytest.raises(UserError, match="a table's policy is the table itself"):
        load("tabular", ["policy.temperature=0.7"])
    with pytest.raises(UserError, match=r"policy\.temperature"):
        load("text-world", ["policy.temperature=0"])


def test_runs_from_before_the_setting_can_be_resumed_and_others_not() -> None:
    plain = load("text-world")
    assert "policy" not in plain.fixed_settings()
    warm = load("text-world", ["policy.temperature=0.7"])
    assert warm.fixed_settings()["policy"] == {"temperature": 0.7}
    assert warm.digest() != plain.digest()


def test_numbers_kept_at_one_temperature_are_not_taken_for_another(
    stored: tuple[Path, ArtifactStore, PolicyVersion],
) -> None:
    folder, store, reference = stored
    cold = load_trainer(folder, store, reference).score(reference, TEXTS)
    warm = load_trainer(folder, store, reference, temperature=T).score(reference, TEXTS)
    assert np.abs(warm - cold).min() > 0.1
    np.testing.assert_array_equal(load_trainer(folder, store, reference).score(reference, TEXTS), cold)
