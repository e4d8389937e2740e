"""Stored scorers of every layout, read and compared with the same numbers computed another way."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForSequenceClassification

from pddpo_ray.config import ScorerConfig
from pddpo_ray.errors import UserError
from pddpo_ray.records import Prompt, Response
from pddpo_ray.scoring.stored_scorers import encoded, label_index, load_scorer, log_odds
from pddpo_ray.training.batches import collate
from pddpo_ray.training.models.score_model import (
    ScoreModel,
    read_score_model,
    score_model_of,
    score_tensors,
    write_score_config,
)
from tests.support.tiny_language_model import save_policy, tiny_llama, word_tokenizer
from tests.support.tutorial_page import blocks

TEXTS = [("word1 word2", "word3"), ("word4", "word5 word6 word7"), ("word1 word2", "word3"), ("word9", "word8 word8")]


def beaver(folder: Path, score_type: str, *, normalize: bool = True, shards: bool = False) -> Path:
    """A random checkpoint with exactly the parameters that a Beaver reward or cost model has on disk."""
    save_policy(folder, seed=4)
    tensors = {n: t for n, t in load_file(folder / "model.safetensors").items() if n.startswith("model.")}
    generator = torch.Generator().manual_seed(5)
    tensors["score_head.weight"] = torch.randn((1, 64), generator=generator)
    tensors["normalizer.mean"] = torch.tensor([0.7])
    tensors["normalizer.var"] = torch.tensor([4.0])
    tensors["normalizer.count"] = torch.tensor([512])
    # what old checkpoints of the original hold besides
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    (folder / "model.safetensors").unlink()
    if shards:
        names = sorted(tensors)
        parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for file, own in parts.items():
            save_file({name: tensors[name] for name in own}, folder / file, metadata={"format": "pt"})
        index = {"metadata": {}, "weight_map": {name: file for file, own in parts.items() for name in own}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "architectures": ["LlamaModelForScore"],
        "score_type": score_type,
        "score_dim": 1,
        "bias": False,
        "do_normalize": normalize,
        "normalizer_type": "RunningMeanStd",
        "mean": [0.7],
        "var": [4.0],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def raw_scores(folder: Path, texts: list[tuple[str, str]]) -> np.ndarray:
    """Head times last hidden state, text by text, by transformers' own model and the tensors as they lie on disk."""
    stored = {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}
    model = tiny_llama(0).model
    own = {name.removeprefix("model."): t for name, t in stored.items() if name.startswith("model.")}
    model.load_state_dict({name: tensor for name, tensor in own.items() if "inv_freq" not in name})
    tokenizer = word_tokenizer()
    found = []
    for prompt, answer in texts:
        text = f"BEGINNING OF CONVERSATION: USER: {prompt} ASSISTANT:{answer}<eos>"
        ids = tokenizer(text.replace("<eos>", " <eos>"), return_tensors="pt")["input_ids"]
        with torch.no_grad():
            found.append(float(stored["score_head.weight"][0] @ model(input_ids=ids).last_hidden_state[0, -1]))
    return np.array(found)


@pytest.mark.parametrize("shards", [False, True])
def test_a_beaver_reward_model_loses_mean_and_scale_a_cost_model_its_scale_alone(tmp_path: Path, shards: bool) -> None:
    raw = raw_scores(beaver(tmp_path / "raw", "reward", shards=shards), TEXTS)
    reward = load_scorer(tmp_path / "raw").score_texts(TEXTS)
    cost = load_scorer(beaver(tmp_path / "cost", "cost", shards=shards)).score_texts(TEXTS)
    plain = load_scorer(beaver(tmp_path / "plain", "cost", normalize=False)).score_texts(TEXTS)
    np.testing.assert_allclose(reward, (raw - 0.7) / 2.0, atol=1e-5)
    np.testing.assert_allclose(cost, raw / 2.0, atol=1e-5)
    np.testing.assert_allclose(plain, raw, atol=1e-5)
    assert len(set(np.round(raw, 3))) == 3, "equal texts have equal scores, others differ"


def test_the_lines_of_the_page_read_and_score_a_model_of_that_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = beaver(Path("models") / "beaver-7b-v1.0-cost", "cost")
    (script,) = blocks("scorers.md", "py")
    told: dict[str, Any] = {}
    exec(compile(script, "scorers.md", "exec"), told)
    asked = [("how do i light the stove ?", "use a long match .")]
    np.testing.assert_array_equal(told["cost"].score_texts(asked), load_scorer(folder).score_texts(asked))


def test_scores_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    folder = beaver(tmp_path / "model", "cost")
    together = load_scorer(folder).score_texts(TEXTS)
    alone = load_scorer(folder, ScorerConfig(batch=1)).score_texts(TEXTS)
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_a_model_trained_here_is_written_in_the_same_layout_and_reads_back_equal(tmp_path: Path) -> None:
    folder = save_policy(tmp_path / "policy", seed=2)
    model = score_model_of(folder, "cost")
    assert model(collate([((1, 9), (7, 2))])).tolist() == [0.0], "a new head scores 0"
    torch.nn.init.normal_(model.score_head.weight)
    stored = tmp_path / "scorer"
    stored.mkdir()
    word_tokenizer().save_pretrained(stored)
    save_file(score_tensors(model), stored / "model.safetensors", metadata={"format": "pt"})
    write_score_config(model, stored, "tokens")
    names = set(load_file(stored / "model.safetensors"))
    assert names == {n for n in load_file(beaver(tmp_path / "b", "cost") / "model.safetensors") if "inv_freq" not in n}
    scorer = load_scorer(stored)
    prompt = Prompt("x", (1, *word_tokenizer()("word1 word2", add_special_tokens=False)["input_ids"]), "word1 word2")
    answer = Response(
        "y", prompt, (*word_tokenizer()("word3", add_special_tokens=False)["input_ids"], 2), "word3", 0, 0
    )
    with torch.no_grad():
        expected = model(collate([(prompt.token_ids, answer.token_ids)])).numpy()
    np.testing.assert_allclose(scorer.score([answer]), expected, atol=1e-6)
    np.testing.assert_allclose(scorer.score_texts([("word1 word2", "word3")]), expected, atol=1e-6)


def test_scale_and_shift_turn_a_harmlessness_model_into_a_cost(tmp_path: Path) -> None:
    folder = beaver(tmp_path / "model", "reward")
    plain = load_scorer(folder).score_texts(TEXTS)
    turned = load_scorer(folder, ScorerConfig(scale=-2.0, shift=0.5)).score_texts(TEXTS)
    np.testing.assert_allclose(turned, 0.5 - 2.0 * plain)


@pytest.mark.parametrize("labels", [1, 2])
def test_a_decoder_classifier_gives_its_output_or_its_log_odds(tmp_path: Path, labels: int) -> None:
    config = LlamaConfig(
        vocab_size=88, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, num_labels=labels, pad_token_id=0, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    found = load_scorer(tmp_path, ScorerConfig(template="{prompt} => {answer}")).score_texts(TEXTS)
    for value, (prompt, answer) in zip(found, TEXTS, strict=True):
        ids = word_tokenizer()(f"{prompt} => {answer} <eos>", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0]
        expected = logits[0] if labels == 1 else logits[1] - logits[0]
        assert value == pytest.approx(float(expected), abs=1e-5)


def test_an_encoder_classifier_reads_prompt_and_answer_as_two_segments(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=88, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_labels=3, id2label={0: "safe", 1: "Unsafe", 2: "unclear"}, pad_token_id=0, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(1)
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="3 labels"):
        load_scorer(tmp_path)
    with pytest.raises(UserError, match="no label harmful"):
        load_scorer(tmp_path, ScorerConfig(label="harmful"))
    scorer = load_scorer(tmp_path, ScorerConfig(label="unsafe"))
    assert scorer.template == "pair"
    with torch.no_grad():
        logits = model(**word_tokenizer()("word4", "word5 word6 word7", return_tensors="pt")).logits[0].double()
    odds = torch.softmax(logits, 0)[1]
    assert scorer.score_texts(TEXTS)[1] == pytest.approx(float(odds.log() - (1 - odds).log()), abs=1e-5)


def test_log_odds_by_hand() -> None:
    logits = torch.tensor([[math.log(0.2), math.log(0.5), math.log(0.3)]])
    assert float(log_odds(logits, 1)) == pytest.approx(0.0, abs=1e-6)
    assert float(log_odds(logits, 0)) == pytest.approx(math.log(0.25), abs=1e-6)
    assert label_index({0: "LABEL_0"}, None, Path("m")) is None


def test_long_texts_lose_their_beginning_and_are_counted(tmp_path: Path) -> None:
    scorer = load_scorer(beaver(tmp_path / "model", "cost"), ScorerConfig(max_tokens=8))
    long = ("word1 " * 50, "word2 word3")
    assert np.isfinite(scorer.score_texts([long, TEXTS[1]])).all()
    assert scorer.truncated == 2


def test_templates() -> None:
    tokenizer = word_tokenizer()
    words = encoded(tokenizer, "tokens", "word1", "word2")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(words) == ["<bos>", "word1", "word2", "<eos>"]
    own = encoded(tokenizer, "{answer} for {prompt}", "{answer}", "word2")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(own) == ["word2", "<unk>", "<unk>", "<eos>"], "slots are filled once"
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    assert len(encoded(tokenizer, "chat", "word1", "word2")["input_ids"]) == 4


def test_what_is_no_scorer_is_refused_with_a_reason(tmp_path: Path) -> None:
    policy = save_policy(tmp_path / "policy", seed=0)
    with pytest.raises(UserError, match="LlamaForCausalLM is no scorer"):
        load_scorer(policy)
    pickled = beaver(tmp_path / "pickled", "cost")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"convert pytorch_model\.bin to safetensors"):
        load_scorer(pickled)
    bare = beaver(tmp_path / "bare", "cost")
    for file in bare.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match="no tokenizer"):
        load_scorer(bare)
    with pytest.raises(UserError, match="hub name reads owner/model"):
        load_scorer(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"lacks \{prompt\} or \{answer\}"):
        load_scorer(beaver(tmp_path / "t", "cost"), ScorerConfig(template="{prompt} only"))
    with pytest.raises(UserError, match="chat template"):
        load_scorer(beaver(tmp_path / "c", "cost"), ScorerConfig(template="chat"))


def test_a_damaged_checkpoint_is_named_tensor_by_tensor(tmp_path: Path) -> None:
    damages: list[tuple[str, dict[str, torch.Tensor | None], str]] = [
        ("missing", {"model.layers.1.mlp.up_proj.weight": None}, "1 tensors of the decoder"),
        ("head", {"score_head.weight": torch.zeros(2, 64)}, "must have shape"),
        ("foreign", {"value_head.weight": torch.zeros(3)}, "value_head.weight"),
    ]
    for name, change, said in damages:
        folder = beaver(tmp_path / name, "cost")
        tensors = {**load_file(folder / "model.safetensors"), **change}
        kept = {key: tensor for key, tensor in tensors.items() if tensor is not None}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(UserError, match=said):
            read_score_model(folder)


def test_a_critic_values_what_stands_before_each_token() -> None:
    """The value at the first response token has read the prompt alone, so it is the same for all answers."""
    model = ScoreModel(tiny_llama(3).model, "critic")
    with torch.no_grad():
        values = model.token_scores(collate([((1, 9, 4), (7, 8, 2)), ((1, 9, 4), (6, 2))]))
        ends = model(collate([((1, 9), (4,))]))
    assert values.shape == (5,)
    torch.testing.assert_close(values[0], values[3])
    torch.testing.assert_close(values[0], ends[0])
