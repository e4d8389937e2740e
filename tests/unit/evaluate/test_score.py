"""`pddpo score`: exact values against sums made here from truth.json, for models of the world's words and of others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from scipy.optimize import minimize_scalar
from scipy.special import expit, logsumexp
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from typer.testing import CliRunner

from pddpo_lab.worlds.exact_score import answer_scores, score
from pddpo_lab.worlds.exported_world import prepare_exported
from pddpo_ray.cli.main import app
from pddpo_ray.evaluate.checkpoint_loading import load_checkpoint
from pddpo_ray.worlds.text.prepared_world import PreparedTextWorld
from tests.support.exported_text_world import Exported, export_to
from tests.support.tiny_language_model import save_policy

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_to(tmp_path_factory.mktemp("world") / "w", "--seed", "0", "--pairs", "24")


@pytest.fixture(scope="module")
def prepared(world: Exported) -> PreparedTextWorld:
    return prepare_exported(world.folder)


def scored(prepared: PreparedTextWorld, checkpoint: Path, base: Path | None = None) -> dict[str, Any]:
    return score(load_checkpoint(str(checkpoint), None if base is None else str(base)), prepared, -3.0)


def printed(*command: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(*command: str) -> str:
    """The one line that a command ends with."""
    done = CliRunner().invoke(app, list(command))
    error = done.exception
    assert getattr(error, "exit_code", None) == 2, (done.output, error)
    assert "\n" not in str(error)
    return str(error)


@torch.no_grad()
def one_by_one(model: Any, tokenizer: Any, world: Exported, prompts: int = 24) -> np.ndarray:
    """log-probability of each answer as text behind its prompt and of the end of sequence, without a cache. [X, Y]"""
    result = np.empty((prompts, len(world.truth["answers"])))
    for x, prompt in enumerate(world.truth["prompts"][:prompts]):
        begin = len(tokenizer(prompt)["input_ids"])
        texts = [tokenizer(f"{prompt} {answer}")["input_ids"] for answer in world.truth["answers"]]
        texts = [[*ids, tokenizer.eos_token_id] for ids in texts]
        longest = max(map(len, texts))
        ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
        logits = torch.log_softmax(model(input_ids=ids).logits[:, :-1].double(), -1)
        steps = logits.gather(-1, ids[:, 1:, None])[..., 0].numpy()
        result[x] = [steps[y, begin - 1 : len(text) - 1].sum() for y, text in enumerate(texts)]
    return result


def by_hand(world: Exported, log_probs: np.ndarray) -> dict[str, float]:
    """gap, violation, KL and what stands behind them, from truth.json and the scores of the answers alone."""
    truth = world.truth
    off = truth["off_grammar"]
    inside = np.exp(log_probs)
    rest = 1.0 - inside.sum(axis=1, keepdims=True)
    table = np.concatenate([inside, rest], axis=1)
    reference = np.concatenate(
        [np.exp(world.table("reference_log_probs")), np.array(off["reference_probs"])[:, None]], 1
    )
    reward, cost = (
        np.concatenate([world.table(key), np.full((len(rest), 1), off[key])], axis=1) for key in ("reward", "cost")
    )
    kl = float((table * np.log(table / reference)).sum(axis=1).mean())
    f = float((table * reward).sum(axis=1).mean()) - truth["beta"] * kl
    g = float((table * cost).sum(axis=1).mean()) - truth["limit"]
    # strong duality: f* is the least value of the dual

    def dual(multiplier: float) -> float:
        logits = np.log(reference) + (reward - multiplier * (cost - truth["limit"])) / truth["beta"]
        return float(truth["beta"] * logsumexp(logits, axis=1).mean())

    best = minimize_scalar(dual, bounds=(0.0, 5.0), method="bounded", options={"xatol": 1e-6}).fun
    return {
        "gap": best - f + 2.0 * truth["rho"] * max(g, 0.0),
        "violation": g,
        "kl": kl,
        "f": f,
        "unsafe_rate": float((table * expit(cost)).sum(axis=1).mean()),
        "off_grammar": float(rest.mean()),
    }


def assert_equal(found: dict[str, Any], expected: dict[str, float]) -> None:
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=2e-5), key


def disturbed(model: Any, scale: float) -> Any:
    """The model with noise on all of its weights: another policy, near enough to write the grammar."""
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * parameter.std() * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def other(world: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of the world's words that is not the reference."""
    folder = tmp_path_factory.mktemp("other") / "model"
    disturbed(AutoModelForCausalLM.from_pretrained(world.reference), 0.15).save_pretrained(folder)
    AutoTokenizer.from_pretrained(world.reference).save_pretrained(folder)
    return folder


def test_the_reference_is_at_no_distance_from_itself(world: Exported) -> None:
    found = printed("score", str(world.reference), "--world", str(world.folder))
    assert found["kl"] == pytest.approx(0.0, abs=1e-9)
    assert found["gap"] == pytest.approx(found["points"]["reference"]["gap"], abs=1e-6)
    assert_equal(found, by_hand(world, world.table("reference_log_probs")))
    optimum = found["points"]["optimum"]
    assert optimum["gap"] == pytest.approx(0.0, abs=1e-9)
    assert optimum["violation"] == pytest.approx(0.0, abs=1e-9)


def test_a_policy_is_worth_what_truth_and_its_own_probabilities_say(
    world: Exported, prepared: PreparedTextWorld, other: Path
) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(other), AutoTokenizer.from_pretrained(other)
    found = scored(prepared, other)
    assert found["kl"] > 0.01
    assert found["tokens"] == "world"
    assert_equal(found, by_hand(world, one_by_one(model, tokenizer, world)))


def test_another_limit_moves_violation_and_optimum_alone(prepared: PreparedTextWorld, other: Path) -> None:
    """By seed and settings; the world is the one in the folder."""
    found = printed("score", str(other), "limits.cost.at_most=-2.7", "--seed", "0")
    strict = scored(prepared, other)
    assert found["violation"] == pytest.approx(strict["violation"] - 0.3, abs=1e-5)
    assert found["kl"] == pytest.approx(strict["kl"], abs=1e-5)
    assert found["points"]["optimum"]["f"] > strict["points"]["optimum"]["f"] + 0.05


def test_a_model_without_a_tokenizer_reads_the_worlds_words(
    prepared: PreparedTextWorld, other: Path, tmp_path: Path
) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(other / name, tmp_path / name)
    assert scored(prepared, tmp_path)["gap"] == pytest.approx(scored(prepared, other)["gap"], abs=1e-6)


def byte_level(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<end>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


@pytest.mark.full
def test_another_tokenizers_answers_are_its_own_tokens(
    world: Exported, prepared: PreparedTextWorld, tmp_path: Path
) -> None:
    """A GPT-2 with subwords, far from the grammar: every answer by its one tokenisation, the rest off the grammar."""
    tokenizer = byte_level(world.truth["answers"][:40])
    assert len(tokenizer(" with children nearby")["input_ids"]) > 4
    torch.manual_seed(1)
    shape = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=96, eos_token_id=0)
    model = disturbed(GPT2LMHeadModel(shape).eval(), 5.0)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    scores, tokens = answer_scores(load_checkpoint(str(tmp_path)), prepared)
    assert tokens == "own"
    np.testing.assert_allclose(scores[:3], one_by_one(model, tokenizer, world, 3), atol=1e-3)
    assert np.std(scores) > 1.0


def adapter(world: Exported, folder: Path) -> Any:
    """An adapter whose up matrices are not zero, saved alone."""
    base = AutoModelForCausalLM.from_pretrained(world.reference)
    torch.manual_seed(3)
    wrapped = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.mul_(0.2)
    wrapped.save_pretrained(folder)
    return wrapped


def test_an_adapter_is_scored_on_its_base(world: Exported, prepared: PreparedTextWorld, tmp_path: Path) -> None:
    merged = adapter(world, tmp_path / "adapter").merge_and_unload()
    merged.save_pretrained(tmp_path / "whole")
    found, expected = scored(prepared, tmp_path / "adapter"), scored(prepared, tmp_path / "whole")
    assert found["kl"] > 0.005
    for key in ("gap", "violation", "kl"):
        assert found[key] == pytest.approx(expected[key], abs=1e-5)
    settings = tmp_path / "adapter" / "adapter_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"base_model_name_or_path": "/gone"}))
    assert "--base" in refused("score", str(tmp_path / "adapter"), "--world", str(world.folder))
    again = scored(prepared, tmp_path / "adapter", world.reference)
    assert again["kl"] == pytest.approx(found["kl"], abs=1e-6)


def without(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()

    return change


def changed_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return rewrite


def changed_config(**values: Any) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return rewrite


def cut_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (without("config.json"), "config.json"),
    "no weights": (without("model.safetensors"), "no *.safetensors"),
    "pickled": (pickled, "pickled weights"),
    "a tensor is missing": (changed_weights(lambda weights: weights.pop("model.norm.weight")), "model.norm.weight"),
    "not a number": (changed_weights(lambda weights: weights["model.norm.weight"].fill_(float("nan"))), "damaged"),
    "an encoder": (changed_config(architectures=["BertModel"]), "no plain decoder"),
    "too short": (changed_config(max_position_embeddings=20), "reads at most 20 tokens"),
    "not JSON": (cut_config, "damaged"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_cannot_be_measured_is_one_line(world: Exported, other: Path, tmp_path: Path, name: str) -> None:
    damage, said = DAMAGES[name]
    shutil.copytree(other, tmp_path / "model")
    damage(tmp_path / "model")
    assert said in refused("score", str(tmp_path / "model"), "--world", str(world.folder))


def test_a_model_of_other_words_is_one_line(world: Exported, tmp_path: Path) -> None:
    folder = save_policy(tmp_path / "words", 1)
    said = refused("score", str(folder), "--world", str(world.folder))
    assert "cannot write this world's words" in said
    (folder / "tokenizer.json").unlink()
    assert "no tokenizer and 88 embeddings" in refused("score", str(folder), "--world", str(world.folder))


def test_an_adapter_that_lacks_a_tensor_is_refused(world: Exported, tmp_path: Path) -> None:
    adapter(world, tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    weights = load_file(file)
    lost = sorted(weights)[0]
    del weights[lost]
    save_file(weights, file)
    assert lost.removesuffix(".weight") in refused("score", str(tmp_path), "--world", str(world.folder))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--world", "tabular"], "a text world is needed"),
        (["--world", "nowhere"], "there is no recipe"),
        (["rounds=3"], "says nothing about a world"),
        (["seed=3"], "says nothing about a world"),
        (["world.seed=many"], "world.seed"),
        (["--base", "x"], "is a whole model"),
        (["--template", "plain"], "need none"),
    ],
)
def test_mistakes_in_the_options_are_one_line(other: Path, options: list[str], said: str) -> None:
    assert said in refused("score", str(other), *options)


def test_an_exported_world_takes_no_other_settings(world: Exported, other: Path) -> None:
    assert "--seed 3" in refused("score", str(other), "--world", str(world.folder), "--seed", "3")
    assert "no such folder" in refused("score", str(other / "nothing"), "--world", str(world.folder))


def test_the_table_shows_the_same_numbers(world: Exported, prepared: PreparedTextWorld, other: Path) -> None:
    done = CliRunner().invoke(app, ["score", str(other), "--world", str(world.folder)], catch_exceptions=False)
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    found = scored(prepared, other)
    assert rows["gap"][:2] == ["violation", "kl"]
    assert [float(cell) for cell in rows["checkpoint"][:3]] == pytest.approx(
        [found["gap"], found["violation"], found["kl"]], abs=1e-6
    )
