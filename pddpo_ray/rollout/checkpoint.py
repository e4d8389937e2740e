"""What a version's folder holds, compared with what an engine expects before it takes anything over.

An engine accepts a partial delivery without a word: a missing layer keeps its old weights. So the names, shapes and
number of the delivered tensors are compared with the model's own list before the first one is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pddpo_ray.errors import RunError
from pddpo_ray.storage.checkpoints import weight_files

if TYPE_CHECKING:
    import torch

Shapes = Mapping[str, tuple[int, ...]]

PROBE = "The quick brown fox asks 3 questions, and word1 word2 answer them: yes; no?"
"""A fixed text: two tokenizers that give it different token ids are different tokenizers."""


@dataclass(frozen=True)
class ModelTensors:
    """Tensors of an architecture by their Hugging Face names; `tied` ones repeat another and may be left out."""

    shapes: Shapes
    tied: frozenset[str] = frozenset()


def model_tensors(folder: Path) -> ModelTensors:
    """Names and shapes of the model that `folder/config.json` describes, without allocating it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    once = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - set(once)
    return ModelTensors(once, frozenset(tied))


def version_files(folder: Path) -> list[Path]:
    """The safetensors files of a version, in name order. Raises RunError when there is none."""
    files = weight_files(folder)
    if not files:
        raise RunError(f"no weights in {folder}: expected model.safetensors; was the artifact store moved or emptied?")
    return files


def stored_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the stored tensors, read from the files' headers alone."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for path in version_files(folder):
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in names}
    return shapes


def stored_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The stored tensors one by one, in the order of their names."""
    from safetensors import safe_open

    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, framework="pt")) for path in version_files(folder)]
        file_of = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        for name in sorted(file_of):
            yield name, file_of[name].get_tensor(name)


def check_version(model: ModelTensors, tokenizer: str, folder: Path, *, engine: str, version: int) -> None:
    """Raise RunError unless a version's folder holds the model's tensors and the tokenizer with this fingerprint."""
    check_shapes(model, stored_shapes(folder), engine=engine, version=version)
    check_tokenizer(tokenizer, folder, engine=engine, version=version)


def check_shapes(model: ModelTensors, delivered: Shapes, *, engine: str, version: int) -> None:
    """Raise RunError naming engine and version unless both lists agree in names, shapes and count."""
    expected = model.shapes
    delivered = {name: shape for name, shape in delivered.items() if name not in model.tied}
    prefix = f"engine {engine}, version {version}: "
    missing = sorted(set(expected) - set(delivered))
    if missing:
        raise RunError(
            f"{prefix}{len(missing)} of {len(expected)} tensors are missing from the delivery, first {missing[0]};"
            " nothing was loaded. Save the version again from the trainer."
        )
    unknown = sorted(set(delivered) - set(expected))
    if unknown:
        raise RunError(f"{prefix}{len(unknown)} delivered tensors are not part of the model, first {unknown[0]}")
    wrong = [name for name in sorted(expected) if tuple(expected[name]) != tuple(delivered[name])]
    if wrong:
        name = wrong[0]
        raise RunError(
            f"{prefix}{name} has shape {list(delivered[name])}, the model expects {list(expected[name])}"
            f" ({len(wrong)} tensors differ)"
        )


def tokenizer_fingerprint(folder: Path) -> str:
    """sha256 over vocabulary, special tokens and the ids of a fixed text: what decides how text becomes token ids."""
    return fingerprint(load_tokenizer(folder))


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder. Raises RunError when the folder has none."""
    from transformers import AutoTokenizer

    if not (folder / "tokenizer_config.json").exists():
        raise RunError(f"no tokenizer in {folder}: a version's folder holds its tokenizer beside its weights")
    return AutoTokenizer.from_pretrained(folder)


def fingerprint(tokenizer: Any) -> str:
    """`tokenizer_fingerprint` of a loaded tokenizer."""
    facts = {
        "vocabulary": sorted(tokenizer.get_vocab().items()),
        "special": sorted((name, str(token)) for name, token in tokenizer.special_tokens_map.items()),
        "probe": list(tokenizer(PROBE, add_special_tokens=False)["input_ids"]),
    }
    return hashlib.sha256(json.dumps(facts, ensure_ascii=True, sort_keys=True).encode()).hexdigest()


def check_tokenizer(fingerprint: str, folder: Path, *, engine: str, version: int) -> None:
    """Raise RunError unless the tokenizer in a version's folder is the engine's own (`fingerprint`)."""
    delivered = tokenizer_fingerprint(folder)
    if delivered != fingerprint:
        raise RunError(
            f"engine {engine}, version {version}: the tokenizer delivered with the weights ({delivered[:12]}) is not"
            f" the engine's ({fingerprint[:12]}); token ids would mean other words. Nothing was loaded."
        )
