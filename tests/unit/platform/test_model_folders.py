"""Model folders as people have them: an adapter alone, one beside weights, heads and settings that say two things."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.config import load
from pddpo_ray.errors import UserError
from pddpo_ray.storage.checkpoints import checkpoint_folder, checkpoint_problem, is_adapter
from tests.support.tiny_language_model import save_policy

IDS = torch.tensor([[1, 5, 9, 40, 2]])


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def adapter(base: Path, folder: Path) -> Any:
    """An adapter whose up matrices are not zero, saved alone. -> its model"""
    torch.manual_seed(1)
    settings = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), settings).eval()
    model.save_pretrained(folder)
    return model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PDDPO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_adapter_is_merged_into_its_base_once(tmp_path: Path, cache: Path) -> None:
    base = save_policy(tmp_path / "base", 4)
    model = adapter(base, tmp_path / "adapter")
    whole = checkpoint_folder(tmp_path / "adapter")
    assert is_adapter(tmp_path / "adapter")
    assert whole.parent == cache
    assert checkpoint_problem(whole) is None
    assert torch.allclose(logits(AutoModelForCausalLM.from_pretrained(whole)), logits(model), atol=1e-5)
    assert checkpoint_folder(tmp_path / "adapter") == whole
    adapter(save_policy(base, 5), tmp_path / "adapter")
    assert checkpoint_folder(tmp_path / "adapter") != whole, "another base, another model"


def test_a_recipe_takes_an_adapter_as_its_reference(tmp_path: Path) -> None:
    adapter(save_policy(tmp_path / "base", 4), tmp_path / "adapter")
    config = load("text-world", [f"model.reference={tmp_path / 'adapter'}"])
    assert config.model.reference == str(tmp_path / "adapter")


def test_an_adapter_whose_base_is_away_is_refused_by_name(tmp_path: Path) -> None:
    adapter(save_policy(tmp_path / "base", 4), tmp_path / "adapter")
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(UserError, match="base: there is no such folder"):
        checkpoint_folder(tmp_path / "adapter")
    settings = tmp_path / "adapter" / "adapter_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "base_model_name_or_path": None}))
    with pytest.raises(UserError, match=r"names no base model: write it into adapter_config\.json"):
        checkpoint_folder(tmp_path / "adapter")


def test_an_adapter_finds_a_base_in_its_own_folder(tmp_path: Path) -> None:
    adapter(save_policy(tmp_path / "base", 4), tmp_path / "adapter")
    shutil.move(tmp_path / "base", tmp_path / "adapter" / "base")
    settings = tmp_path / "adapter" / "adapter_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "base_model_name_or_path": "base"}))
    assert checkpoint_problem(checkpoint_folder(tmp_path / "adapter")) is None


def stray(folder: Path) -> None:
    adapter(folder, folder.parent / "adapter")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(folder.parent / "adapter" / name, folder / name)


def another_head(folder: Path) -> None:
    save_policy(folder, 4, tied=True)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = torch.randn_like(weights["model.embed_tokens.weight"])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def damaged_settings(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{not JSON")


def pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 7\n")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (pointer, "model.safetensors, which is a pointer of Git LFS"),
        (stray, "holds a whole model and an adapter: take adapter_config.json out"),
        (
            another_head,
            "another output head in its file (lm_head.weight) than its configuration says: tie_word_embeddings",
        ),
        (damaged_settings, "generation_config.json"),
    ],
)
def test_what_is_wrong_with_a_folder_is_named_alike_everywhere(tmp_path: Path, change: Any, says: str) -> None:
    folder = save_policy(tmp_path / "model", 4)
    change(folder)
    assert says in str(checkpoint_problem(folder))
    with pytest.raises(UserError) as refused:
        load("text-world", [f"model.reference={folder}"])
    assert says in str(refused.value)
    told = CliRunner().invoke(app, ["doctor", "--model", str(folder), "--engine", "transformers"])
    assert told.exit_code == 2
    assert says in told.output


def test_a_tied_head_that_is_in_the_file_again_is_no_fault(tmp_path: Path) -> None:
    folder = save_policy(tmp_path / "model", 4, tied=True)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert checkpoint_problem(folder) is None


@pytest.mark.slow
def test_the_doctor_takes_a_greedy_model_and_an_adapter_the_whole_way(tmp_path: Path) -> None:
    greedy = save_policy(tmp_path / "greedy", 4)
    settings = {"do_sample": False, "temperature": 0.8, "repetition_penalty": 1.1, "eos_token_id": 2}
    (greedy / "generation_config.json").write_text(json.dumps(settings))
    (greedy / "chat_template.jinja").write_text(
        "{{ bos_token }} {{ strftime_now('%d %b %Y') }}{% for turn in messages %} {{ turn.content }}{% endfor %}"
    )
    told = CliRunner().invoke(app, ["doctor", "--model", str(greedy), "--engine", "transformers"])
    assert told.exit_code == 0, told.output
    assert "its generation settings are not used: do_sample, repetition_penalty, temperature" in told.output
    adapter(save_policy(tmp_path / "base", 4), tmp_path / "adapter")
    told = CliRunner().invoke(app, ["doctor", "--model", str(tmp_path / "adapter"), "--engine", "transformers"])
    assert told.exit_code == 0, told.output


def test_the_doctor_names_templates_with_names(tmp_path: Path) -> None:
    folder = save_policy(tmp_path / "model", 4)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = [
        {"name": name, "template": "{{ messages[0].content }}"} for name in ("search", "tools")
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    told = CliRunner().invoke(app, ["doctor", "--model", str(folder), "--engine", "transformers"])
    assert told.exit_code == 2
    assert "search, tools and no default: choose one, for example tokenizer:search" in told.output
    assert "Traceback" not in told.output
