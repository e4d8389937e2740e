"""`pddpo export`: a folder that transformers loads and that says what the run's policy says; and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from typer.testing import CliRunner

from pddpo_ray.certificates.document import verified
from pddpo_ray.cli.main import app, main
from pddpo_ray.records import PolicyVersion
from pddpo_ray.storage.adapters import ADAPTER, merged, read_adapter, write_adapter
from pddpo_ray.storage.tensors import tensors_sha256
from tests.support.served_run import SAFE, UNSAFE, ServedRun, make_run
from tests.support.tiny_language_model import tiny_llama, word_tokenizer

TEXT = torch.tensor([[1, 5, 6, 7, 20, 30, 40, 2]])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRun]:
    """Round 1 is certified and released, round 2 is neither."""
    made = make_run(tmp_path_factory.mktemp("runs") / "demo", (SAFE, UNSAFE))
    yield made
    made.close()


def log_probs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TEXT).logits.log_softmax(-1)


def export(run: Path, to: Path, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["export", str(run), "--to", str(to), "--json", *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a user's mistake."""
    with pytest.raises(SystemExit, match="2"):
        main(["export", *arguments])
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.slow
def test_the_released_policy_is_loaded_by_transformers_with_its_own_log_probabilities(
    run: ServedRun, tmp_path: Path
) -> None:
    told = export(run.folder, tmp_path / "model")
    assert (told["round"], told["release"], told["certified"]) == (1, "released", True)
    assert verified(tmp_path / "model" / "certificate.json")["candidate"]["versions"][0]["sha256"] == told["sha256"]
    assert "Certified: cost, the mean logit" in (tmp_path / "model" / "README.md").read_text()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(log_probs(model), log_probs(tiny_llama(101)), atol=1e-6, rtol=0)
    assert tensors_sha256(model.state_dict().items()) == told["sha256"]
    assert AutoTokenizer.from_pretrained(tmp_path / "model")("word3")["input_ids"] == [7]
    said = AutoTokenizer.from_pretrained(tmp_path / "model").apply_chat_template(
        [{"role": "user", "content": "word3 word4"}], tokenize=False
    )
    assert said.split() == ["<bos>word3", "word4"]
    drawn = model.generation_config
    assert (drawn.eos_token_id, drawn.do_sample, drawn.temperature, drawn.top_p, drawn.top_k) == (
        [2],
        True,
        1.0,
        1.0,
        0,
    )


@pytest.mark.slow
def test_an_uncertified_round_is_exported_when_it_is_asked_for_and_its_card_says_so(
    run: ServedRun, tmp_path: Path
) -> None:
    told = export(run.folder, tmp_path / "second", "--round", "2")
    assert (told["round"], told["release"], told["certified"]) == (2, "unreleased", False)
    assert not (tmp_path / "second" / "certificate.json").exists()
    card = (tmp_path / "second" / "README.md").read_text()
    assert "**Not released** (unreleased). **Uncertified**: Nothing is certified." in card
    assert "| cost | at most 0 logit | " in card
    assert told["sha256"] in card
    assert "temperature of the policy: 1 (" in card
    assert "licence of the base: not stated" in card


def test_exporting_changes_nothing_in_the_run(run: ServedRun, tmp_path: Path) -> None:
    def content() -> dict[str, int]:
        return {str(file): file.stat().st_mtime_ns for file in run.folder.rglob("*") if "journal" not in file.name}

    before = content()
    export(run.folder, tmp_path / "model")
    assert content() == before


@pytest.mark.slow
def test_what_cannot_be_exported_is_said_in_one_line(
    run: ServedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert "not empty" in refused(capsys, str(run.folder), "--to", str(tmp_path / "full"))
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
    to = ("--to", str(tmp_path / "new"))
    assert "no policy of round 7; finished rounds: 1, 2" in refused(capsys, str(run.folder), *to, "--round", "7")
    assert "leave --adapter out" in refused(capsys, str(run.folder), *to, "--adapter")
    unreleased = make_run(tmp_path / "unreleased", (UNSAFE,))
    unreleased.close()
    said = refused(capsys, str(unreleased.folder), *to)
    assert "is released" in said
    assert "--round (finished: 1)" in said
    assert not (tmp_path / "new").exists()


class AdapterRun(ServedRun):
    """Rounds that are stored as adapters on the reference."""

    def _version(self, number: int, name: str, seed: int) -> PolicyVersion:
        if number == 0:
            self.base = super()._version(number, name, seed)
            return self.base
        from pddpo_ray.training.models.lora import add_adapters

        model: Any = add_adapters(tiny_llama(100), rank=2, alpha=4.0)
        generator = torch.Generator().manual_seed(seed)
        adapter = {
            name: torch.randn(tensor.shape, generator=generator) * 0.1
            for name, tensor in model.named_parameters()
            if tensor.requires_grad
        }
        weights = merged(self.store.read_torch(self.base.path, self.base.sha256), adapter, 2.0)

        def fill(folder: Path) -> None:
            tiny_llama(100).config.save_pretrained(folder)
            word_tokenizer().save_pretrained(folder)
            write_adapter(folder, adapter, self.base, 2.0)
            model.peft_config["default"].save_pretrained(folder / ADAPTER)

        sha256 = tensors_sha256(weights.items())
        path = f"{name}-{sha256[:12]}"
        self.store.write_folder(path, fill)
        return PolicyVersion(number, name, sha256, path)


@pytest.mark.slow
def test_an_adapter_is_exported_merged_or_alone_with_equal_log_probabilities(tmp_path: Path) -> None:
    from peft import PeftModel

    plain = make_run(tmp_path / "run")
    run = AdapterRun(plain.folder, plain.journal, plain.store)
    run.base = next(entry.version for entry in run.journal.versions())
    run.add_round(SAFE)
    run.close()
    whole = export(run.folder, tmp_path / "whole")
    export(run.folder, tmp_path / "alone", "--adapter")
    named = json.loads((tmp_path / "alone" / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert named == "base"  # the run made it, so it goes along, and no folder of this machine is named
    run.folder.rename(tmp_path / "elsewhere")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "alone" / named)
    alone = PeftModel.from_pretrained(base, tmp_path / "alone").eval()
    torch.testing.assert_close(log_probs(model), log_probs(alone), atol=1e-4, rtol=0)
    assert str(tmp_path) not in (tmp_path / "alone" / "README.md").read_text()
    (tmp_path / "elsewhere").rename(run.folder)
    assert (log_probs(model) - log_probs(tiny_llama(100))).abs().max() > 0.01
    stored = run.store.read_torch(run.base.path, run.base.sha256)
    adapter = read_adapter(run.store.stored(f"policy-1-{whole['sha256'][:12]}"))
    expected = tiny_llama(100)
    expected.load_state_dict(merged(stored, adapter, 2.0))
    torch.testing.assert_close(log_probs(model), log_probs(expected), atol=1e-6, rtol=0)
    assert not (run.folder / "artifacts" / ".whole").exists()


def test_the_card_names_the_licence_that_the_bases_folder_states(tmp_path: Path) -> None:
    from pddpo_ray.serving.model_card import license_of

    assert license_of(None) is None
    assert license_of(str(tmp_path)) is None
    (tmp_path / "LICENSE").write_text("do as you like")
    assert license_of(str(tmp_path)) == "other"
    (tmp_path / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# a model\n")
    assert license_of(str(tmp_path)) == "apache-2.0"


def test_an_exported_policy_is_drawn_at_its_own_temperature(tmp_path: Path) -> None:
    made = make_run(tmp_path / "warm", (SAFE,), temperature=0.7)
    made.close()
    export(made.folder, tmp_path / "model")
    assert "temperature of the policy: 0.7 (" in (tmp_path / "model" / "README.md").read_text()
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").generation_config.temperature == 0.7


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.1, "top_k": 20, "top_p": 0.8, "temperature": 0.7},
        {"no_repeat_ngram_size": 3, "min_length": 20, "suppress_tokens": [7], "bad_words_ids": [[9]]},
        {"num_beams": 1, "early_stopping": True, "do_sample": False},
    ],
)
def test_an_export_draws_from_the_certified_policy_whatever_the_reference_was_drawn_with(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    made = make_run(tmp_path / "run", (SAFE,))
    made.close()
    for version in (tmp_path / "run" / "artifacts").iterdir():
        (version / "generation_config.json").write_text(json.dumps(settings))
    export(tmp_path / "run", tmp_path / "model", "--round", "1")
    kept = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert set(kept) == {"eos_token_id", "pad_token_id", "do_sample", "temperature", "top_p", "top_k", "max_new_tokens"}
    assert (kept["do_sample"], kept["top_p"], kept["top_k"]) == (True, 1.0, 0)
    decoding = verified(tmp_path / "model" / "certificate.json")["candidate"]["decoding"]
    assert kept["max_new_tokens"] == decoding["max_tokens"]
    GenerationConfig(**kept).save_pretrained(tmp_path / "again")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.generation_config.repetition_penalty in (None, 1.0)
