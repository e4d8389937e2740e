"""Finds and checks a checkpoint: a folder, an adapter or a hub name, one weight file or shards.

Except for an adapter, which is merged once, this reads names and JSON: plans and error messages need no loaded model.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError, one_line
from pddpo_ray.storage.whole_files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    LFS_POINTER,
    SHARDS,
    WEIGHTS,
    cache_folder,
    made_once,
)

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
"""What is downloaded from the hub: no pickled weights, no code."""
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
HEADS = ("lm_head.weight", "embed_out.weight")
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
GENERATION = "generation_config.json"
USED_SETTINGS = re.compile(r"(eos|bos|pad)_token_id|transformers_version|_from_model_config|output_.*|use_cache")
"""Generation settings that are read, or that do not affect sampling."""
UNREADABLE = "model.reference {folder}: cannot read the model's sizes ({error!r}); save it again"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
DECODERS = ("ForCausalLM", "LMHeadModel")
SCALED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Settings of models (Gemma 2, Cohere, Granite) that change the logits which their output head gives."""
TURNED = ("gpt2", "openai-gpt")
"""Model types with transposed matrices (transformers' Conv1D): base + up @ down would be another matrix."""


def is_hub_name(source: str | Path) -> bool:
    """Whether this can only mean a model of the hub: owner/model, and no such folder here."""
    return HUB_NAME.fullmatch(str(source)) is not None and not Path(source).exists()


def checkpoint_folder(source: str | Path) -> Path:
    """The folder itself, a hub model's files in the hub's cache, downloaded the first time, or the folder of an adapter
    that is merged into its base. UserError where there is none of them."""
    folder = Path(source)
    if not folder.is_dir():
        folder = _hub_folder(source)
    return merged_checkpoint(folder) if is_adapter(folder) else folder


def is_adapter(folder: str | Path) -> bool:
    """Whether a folder holds an adapter and no whole model."""
    return (Path(folder) / ADAPTER_CONFIG).is_file() and not (Path(folder) / "config.json").is_file()


def _hub_folder(source: str | Path) -> Path:
    if not is_hub_name(source):
        raise UserError(f"{source}: there is no such folder, and a hub name reads owner/model")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(source), allow_patterns=FILES))
    except Exception as error:
        raise UserError(f"{source}: no such folder, and the hub did not give it: {one_line(error)}") from error


def merged_checkpoint(folder: Path) -> Path:
    """The folder of the merged model in float32, with the tokenizer beside the adapter, else the base's.

    UserError where the base is not there, or does not fit.
    """
    base = checkpoint_folder(stated_base(folder))
    if problem := checkpoint_problem(base):
        raise UserError(f"{folder} is an adapter, and its base {base} {problem}")
    identity = json.dumps([str(folder.absolute()), files_now(folder), str(base.absolute()), files_now(base)])
    name = f"merged-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    return made_once(cache_folder() / name, lambda staging: _merge(folder, base, staging))


def stated_base(folder: Path) -> str:
    """The base that an adapter names: a folder, also one beside it, or a hub name. UserError where it names none."""
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise UserError(f"{folder} has no {ADAPTER_WEIGHTS}; save the adapter there with save_pretrained (safetensors)")
    try:
        base = json.loads((folder / ADAPTER_CONFIG).read_text("utf-8")).get("base_model_name_or_path")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{folder / ADAPTER_CONFIG} is damaged ({error}); save the adapter again") from error
    if not base:
        raise UserError(f"{folder} names no base model: write it into {ADAPTER_CONFIG} as base_model_name_or_path")
    return str(folder / base) if (folder / base).is_dir() else str(base)


def _merge(folder: Path, base: Path, target: Path) -> None:
    # torch and peft take seconds to load
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from pddpo_ray.storage.adapters import put_on

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, use_safetensors=True)
    # keeps the end of answers, and no setting that bends sampling
    model.generation_config = GenerationConfig(eos_token_id=model.generation_config.eos_token_id)
    put_on(model, folder).save_pretrained(target)
    AutoTokenizer.from_pretrained(folder if has_tokenizer(folder) else base).save_pretrained(target)


def files_now(source: str | Path) -> list[tuple[str, int, int]]:
    """Name, size and time (ns) of a folder's files: another model put there has others. Empty for a hub name."""
    if not Path(source).is_dir():
        return []
    files = sorted(path for path in Path(source).iterdir() if path.is_file())
    return [(path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model, in name order; empty where there is none.

    Other files with weights may be in the folder (an original format, an adapter): the index and the usual name win.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / SHARDS).is_file():
        return sorted({folder / name for name in _json(folder / SHARDS)["weight_map"].values()})
    return sorted(folder.glob("*.safetensors"))


def weight_shapes(folder: Path) -> list[tuple[int, ...]]:
    """Shapes of a model's tensors, from the headers of its files. UserError where they cannot be read."""
    try:
        return [shape for path in weight_files(folder) for shape in _shapes_in(path)]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(UNREADABLE.format(folder=folder, error=error)) from error


def parameters_in(source: str | Path) -> int:
    """Numbers of a model's tensors; 0: there is no such folder, or the hub's is not fetched. UserError as above."""
    if is_hub_name(source):
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(str(source), "config.json")
        source = Path(path).parent if isinstance(path, str) else source
    return sum(map(math.prod, weight_shapes(Path(source))))


def _shapes_in(path: Path) -> list[tuple[int, ...]]:
    """Of a safetensors file: 8 bytes of length (little-endian), then JSON."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > 100 * 2**20:
            raise ValueError(f"{path.name} is not a safetensors file")
        header = json.loads(file.read(length))
    return [tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"]


def checkpoint_problem(folder: Path) -> str | None:
    """Why a folder is no language model in Hugging Face layout with its tokenizer, and what to do; None if it is."""
    if not folder.is_dir():
        return "does not exist; give a folder with config.json, *.safetensors and a tokenizer, or a hub's owner/model"
    try:
        return model_problem(folder) or _training_problem(folder) or _tokenizer_problem(folder)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return _damage_problem(error)


def model_problem(folder: Path) -> str | None:
    """Why a folder holds no causal language model, with a tokenizer or without; None if it does."""
    if not (folder / "config.json").is_file():
        return "has no config.json; save the model there with save_pretrained"
    if (folder / ADAPTER_CONFIG).is_file():
        return f"holds a whole model and an adapter: take {ADAPTER_CONFIG} out, or give a folder with the adapter alone"
    try:
        unused_settings(folder)
        return _kind_problem(folder) or _weights_problem(folder) or _head_problem(folder)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return _damage_problem(error)


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZERS)


def unused_settings(folder: Path) -> list[str]:
    """Generation settings that runs, endpoints and exports ignore: they sample from the policy as it is."""
    file = folder / GENERATION
    settings = _json(file) if file.is_file() else {}
    return sorted(name for name, value in settings.items() if not USED_SETTINGS.fullmatch(name) and value is not None)


def longest_context(folder: Path) -> int | None:
    """Tokens that the model has positions for, by `config.json`; None: no file, no entry, or scaled positions."""
    if not (folder / "config.json").is_file():
        return None
    config = _json(folder / "config.json")
    config = config.get("text_config") or config
    if config.get("rope_scaling"):
        return None
    lengths = [config.get(name) for name in ("max_position_embeddings", "n_positions")]
    return next((int(number) for number in lengths if number), None)


def _damage_problem(error: Exception) -> str:
    return f"has a damaged file ({error!r}); save the model there again"


def adapter_problem(folder: Path) -> str | None:
    """Why a decoder takes no adapters here, and what to do; None if it does."""
    kind = _json(folder / "config.json").get("model_type")
    if kind not in TURNED:
        return None
    return f"is of GPT-2's kind ({kind}), which takes no adapters: set model.parameters.kind=full"


def _kind_problem(folder: Path) -> str | None:
    names = _json(folder / "config.json").get("architectures") or []
    if names and not any(name.endswith(DECODERS) for name in names):
        return f"holds {names[0]}, no plain decoder; give a model of a kind …ForCausalLM"
    return None


def _training_problem(folder: Path) -> str | None:
    config = _json(folder / "config.json")
    names = [name for name in SCALED_LOGITS if config.get(name) not in (None, 1, 1.0)]
    if names:
        return f"changes its logits ({names[0]}), which the trainer does not do; give a model of another kind"
    if "quantization_config" in config:
        return "is quantised, and its weights cannot be trained; give the checkpoint that it was made from"
    return None


def _weights_problem(folder: Path) -> str | None:
    files = weight_files(folder)
    if not files:
        names = sorted(file.name for pattern in PICKLED for file in folder.glob(pattern))
        if names:
            return f"has pickled weights ({names[0]}), which can run code and are not read; save them as safetensors"
        return "has no *.safetensors; save the model there with save_pretrained"
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        return f"lacks {len(missing)} of its {len(files)} files of weights, first {missing[0]}; copy it again"
    pointer = next((file.name for file in files if _begins_with(file, LFS_POINTER)), None)
    if pointer:
        return f"holds {pointer}, which is a pointer of Git LFS; fetch what it stands for: git lfs pull"
    return None


def _begins_with(file: Path, start: bytes) -> bool:
    with file.open("rb") as content:
        return content.read(len(start)) == start


def _head_problem(folder: Path) -> str | None:
    """A file with its own output head, although the configuration ties it to the embeddings."""
    from safetensors import SafetensorError, safe_open

    place: dict[str, Path] = {}
    try:
        for file in weight_files(folder):
            with safe_open(file, "np") as stored:
                place |= dict.fromkeys(stored.keys(), file)
    except SafetensorError:
        return None  # loading says what is wrong with the file
    ends = [next((name for name in place if name.endswith(endings)), None) for endings in (HEADS, EMBEDDINGS)]
    if None in ends or not _is_tied(folder):
        return None
    both = []
    for name in map(str, ends):
        with safe_open(place[name], "pt") as stored:
            both.append(stored.get_tensor(name))
    if both[0].equal(both[1]):
        return None
    return (
        f"has another output head in its file ({ends[0]}) than its configuration says: tie_word_embeddings makes the"
        " embeddings the head; set it to false in config.json, or take the head out"
    )


def _is_tied(folder: Path) -> bool:
    config = _json(folder / "config.json")
    tied = config.get("tie_word_embeddings", (config.get("text_config") or {}).get("tie_word_embeddings"))
    if tied is not None:
        return bool(tied)
    from transformers import AutoConfig

    return bool(getattr(AutoConfig.from_pretrained(folder), "tie_word_embeddings", False))


def _tokenizer_problem(folder: Path) -> str | None:
    if not has_tokenizer(folder):
        return "has no tokenizer; save it there too: tokenizer.save_pretrained(folder)"
    config = _json(folder / "config.json")
    rows = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    last = _last_token(folder / "tokenizer.json")
    if rows is not None and last is not None and last >= rows:
        return f"has {rows} embeddings and a tokenizer with ids up to {last}: another model's; save its own there"
    return None


def _last_token(file: Path) -> int | None:
    """The largest id in a tokenizer.json; None where there is none to read."""
    if not file.is_file():
        return None
    content = _json(file)
    vocabulary = (content.get("model") or {}).get("vocab") or {}
    # a table of ids, or (unigram) a list of pieces by id
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))
    ids += [token["id"] for token in content.get("added_tokens") or []]
    return max(ids, default=None)


def control_tokens(folder: Path) -> tuple[str, ...]:
    """Texts of the special tokens of a model folder's tokenizer.json, without loading the tokenizer: in a message they
    would begin or end a turn. Empty where there is no such file."""
    file = folder / "tokenizer.json"
    tokens = (_json(file).get("added_tokens") or []) if file.is_file() else []
    return tuple(str(token["content"]) for token in tokens if token.get("special"))


def _json(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file.name}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file.name} holds no object")
    return content
