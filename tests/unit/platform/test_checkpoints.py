"""Which checkpoints are taken as a reference, in what form a run keeps them, and what is said about the others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.config import load
from pddpo_ray.errors import UserError
from pddpo_ray.plan.memory import model_shape
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.checkpoints import checkpoint_folder, checkpoint_problem, is_hub_name, weight_files
from pddpo_ray.training.local import store_reference
from tests.support.tiny_language_model import SPECIAL, WORDS, save_policy, word_tokenizer

SIZE = {"vocab_size": len(SPECIAL) + len(WORDS), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def small_llama(*, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**SIZE, **shape, tie_word_embeddings=tied))


def sharded(folder: Path) -> None:
    small_llama(tied=False).save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2


def tied(folder: Path) -> None:
    small_llama(tied=True).save_pretrained(folder)


def beside_another_format(folder: Path) -> None:
    """As some makers publish: the original's file beside the one that transformers reads."""
    small_llama(tied=False).save_pretrained(folder)
    save_file({"tok_embeddings.weight": torch.zeros(4, 4)}, folder / "consolidated.safetensors")


def half_precision(folder: Path) -> None:
    small_llama(tied=True).to(torch.bfloat16).save_pretrained(folder)


def without_the_heads_prefix(folder: Path) -> None:
    """GPT-2 as its makers saved it: names begin with `h.`, not with `transformer.h.`."""
    torch.manual_seed(3)
    model = GPT2LMHeadModel(GPT2Config(**SIZE, n_embd=32, n_layer=2, n_head=2))
    model.save_pretrained(folder)
    plain = {name.removeprefix("transformer."): one for name, one in load_file(folder / "model.safetensors").items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})


LAYOUTS = [sharded, tied, beside_another_format, half_precision, without_the_heads_prefix]


@pytest.mark.parametrize("save", LAYOUTS, ids=lambda save: save.__name__)
def test_a_run_keeps_every_layout_as_one_file_that_computes_the_same(
    tmp_path: Path, save: Callable[[Path], None]
) -> None:
    folder = tmp_path / "model"
    save(folder)
    word_tokenizer().save_pretrained(folder)
    assert checkpoint_problem(folder) is None
    assert load("text-world", [f"model.reference={folder}"]).model.reference == str(folder)
    shape = model_shape(load("text-world", [f"model.reference={folder}"]))
    assert shape is not None
    assert (shape.hidden, shape.layers, shape.vocabulary) == (32, 2, SIZE["vocab_size"])
    store = ArtifactStore(tmp_path / "artifacts")
    kept = store.folder(store_reference(store, folder).path)
    assert [file.name for file in weight_files(kept)] == ["model.safetensors"]
    assert not list(kept.glob("*.index.json"))
    ids = torch.tensor([[1, 5, 9, 40, 2]])
    with torch.no_grad():
        whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
        assert torch.equal(AutoModelForCausalLM.from_pretrained(kept)(ids).logits, whole)


def test_adapters_on_gpt2s_kind_are_refused_before_anything_starts(tmp_path: Path) -> None:
    without_the_heads_prefix(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"is of GPT-2's kind \(gpt2\), which takes no adapters: set model.parameters"):
        load("text-world", [f"model.reference={tmp_path}", "model.parameters={kind: lora}"])


def test_the_reference_is_kept_in_the_type_that_the_run_computes_in(tmp_path: Path) -> None:
    folder = save_policy(tmp_path / "model", seed=0)
    store = ArtifactStore(tmp_path / "artifacts")
    kept = store.folder(store_reference(store, folder, dtype="bfloat16").path)
    assert {tensor.dtype for tensor in load_file(kept / "model.safetensors").values()} == {torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(kept).dtype == torch.bfloat16


def test_sizes_of_a_sharded_model_are_those_of_all_its_files(tmp_path: Path) -> None:
    sharded(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    shape = model_shape(load("text-world", [f"model.reference={tmp_path}"]))
    assert shape is not None
    assert shape.parameters == sum(parameter.numel() for parameter in small_llama(tied=False).parameters())


def test_a_file_without_all_of_its_tensors_is_refused(tmp_path: Path) -> None:
    folder = save_policy(tmp_path / "model", seed=0)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks 1 tensors of its model, first model\.norm\.weight"):
        store_reference(ArtifactStore(tmp_path / "artifacts"), folder)


# --- what is no reference --------------------------------------------------------------------------------------------


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def encoder(folder: Path) -> None:
    change_config(folder, architectures=["BertForMaskedLM"], model_type="bert")


def tokenizer_of_another_model(folder: Path) -> None:
    word_tokenizer([f"word{i}" for i in range(200)]).save_pretrained(folder)


def shard_missing(folder: Path) -> None:
    shutil.rmtree(folder)
    sharded(folder)
    word_tokenizer().save_pretrained(folder)
    min(folder.glob("*.safetensors")).unlink()


def quantised(folder: Path) -> None:
    change_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})


def damaged(folder: Path) -> None:
    (folder / "config.json").write_text("{")


MISTAKES = [
    (pickled, r"has pickled weights \(pytorch_model\.bin\), which can run code and are not read"),
    (encoder, "holds BertForMaskedLM, no plain decoder"),
    (tokenizer_of_another_model, "has 88 embeddings and a tokenizer with ids up to 203"),
    (shard_missing, r"lacks \d of its \d+ files of weights, first model-00001-of-"),
    (quantised, "is quantised, and its weights cannot be trained"),
    (damaged, "has a damaged file"),
]


@pytest.mark.parametrize(("spoil", "says"), MISTAKES, ids=[spoil.__name__ for spoil, _ in MISTAKES])
def test_what_is_no_reference_is_one_line_in_a_dry_run(
    tmp_path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    folder = save_policy(tmp_path / "model", seed=0)
    spoil(folder)
    done = CliRunner().invoke(app, ["train", "real-text", f"model.reference={folder}", "--dry-run"])
    assert isinstance(done.exception, UserError)
    with pytest.raises(UserError, match=says):
        raise done.exception
    assert "\n" not in str(done.exception)


# --- the hub ---------------------------------------------------------------------------------------------------------


def test_a_hub_name_is_a_reference_like_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that lies in the hub's cache, without a network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    kept, commit = tmp_path / "models--somebody--small-model", "0" * 40
    save_policy(kept / "snapshots" / commit, seed=0)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(commit)
    config = load("text-world", ["model.reference=somebody/small-model"])
    assert config.model.reference == "somebody/small-model"
    assert checkpoint_folder("somebody/small-model") == kept / "snapshots" / commit
    with pytest.raises(UserError, match=r"somebody/none: no such folder, and the hub did not give it: "):
        load("text-world", ["model.reference=somebody/none"])


@pytest.mark.parametrize("source", ["model", "/models/small", "runs/a/b", "../a", "./a"])
def test_a_path_is_no_hub_name(source: str) -> None:
    assert not is_hub_name(source)
    with pytest.raises(UserError, match="there is no such folder, and a hub name reads owner/model"):
        checkpoint_folder(source)
