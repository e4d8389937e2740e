"""Any checkpoint as a model in memory: a folder, a hub name, a version of a run, or a LoRA adapter on its base.

A model whose files lack weights is refused: transformers would fill the gaps with random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.evaluate.models import Model, model_folder, policy_temperature
from pddpo_ray.storage.adapters import put_on
from pddpo_ray.storage.checkpoints import checkpoint_folder, has_tokenizer, is_adapter, model_problem, stated_base
from pddpo_ray.storage.whole_files import JOURNAL


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A causal language model in float32 on this machine, and the tokenizer that came with it, if one did."""

    name: str
    model: Any
    tokenizer: Any | None
    tokenizer_folder: Path | None
    temperature: float | None = None
    """The policy's, as stated by the run whose version this is; None for any other model."""


def load_checkpoint(place: str, base: str | None = None) -> Checkpoint:
    """`place` is a folder, a hub name or RUN@VERSION; `base` replaces the base model that an adapter names.

    UserError where there is no causal language model, or where its files do not fill it.
    """
    folder = Path(place).expanduser()
    if is_adapter(folder):
        return _adapter(place, folder, base)
    if base is not None:
        raise UserError(f"--base {base}: {place} is a whole model; only an adapter has a base")
    if not (Path(place.partition("@")[0]).expanduser() / JOURNAL).is_file():
        return _whole(place, checkpoint_folder(folder))
    return replace(_whole(place, model_folder(place)), temperature=policy_temperature([Model("run", place)]))


def _whole(place: str, folder: Path) -> Checkpoint:
    problem = model_problem(folder)
    if problem:
        raise UserError(f"{place} {problem}")
    from_folder = folder if has_tokenizer(folder) else None
    return Checkpoint(place, _load_model(place, folder), _load_tokenizer(place, from_folder), from_folder)


def _adapter(place: str, folder: Path, base: str | None) -> Checkpoint:
    """The adapter merged into its base, with the adapter's tokenizer or, without one, the base's."""
    try:
        base_name = base or stated_base(folder)
        base_checkpoint = _whole(base_name, checkpoint_folder(base_name))
    except UserError as error:
        raise UserError(f"{place} is an adapter, and its base is not usable (--base names another): {error}") from error
    tokenizer_folder = folder if has_tokenizer(folder) else base_checkpoint.tokenizer_folder
    return Checkpoint(
        place, put_on(base_checkpoint.model, folder), _load_tokenizer(place, tokenizer_folder), tokenizer_folder
    )


def _load_model(place: str, folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, local_files_only=True, output_loading_info=True
        )
    except Exception as error:
        raise UserError(f"{place} cannot be loaded as a causal language model: {_first_line(error)}") from error
    _demand_all_weights(place, loading)
    return model.eval()


def _demand_all_weights(place: str, loading: Mapping[str, Any]) -> None:
    """transformers fills what the files lack with random numbers and only warns."""
    for key, words in (("missing_keys", "lack"), ("mismatched_keys", "have another shape for")):
        names = sorted(str(name) for name in loading.get(key) or ())
        if names:
            raise UserError(f"{place}: its weights {words} {len(names)} tensors of the model, first {names[0]}")


def _load_tokenizer(place: str, folder: Path | None) -> Any | None:
    if folder is None:
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise UserError(f"{place}: its tokenizer cannot be loaded: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
