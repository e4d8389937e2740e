"""Policies that another trainer saved: which folder is meant, its weights in a store, prompts as it reads them.

out/                  config.json, *.safetensors, tokenizer: what `trainer.save_model()` leaves, called `final`
out/checkpoint-20/    the same of a step, or an adapter beside the base that its adapter_config.json names
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.limits.answer_files import asked_turns, json_rows
from pddpo_ray.records import PolicyVersion, Prompt
from pddpo_ray.rollout.checkpoint import fingerprint, load_tokenizer
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.storage.checkpoints import checkpoint_folder, checkpoint_problem
from pddpo_ray.storage.whole_files import ADAPTER_CONFIG
from pddpo_ray.text.renderer import stop_ids
from pddpo_ray.text.templates import as_dicts, for_reading
from pddpo_ray.training.local import store_reference

FINAL, LAST = "final", "last"
DTYPE = "float32"
"""In which a policy is certified, whatever its files hold."""


def saved_names(out: Path) -> list[str]:
    """Names of the policies in a folder, the last one last: checkpoints by their steps, then `final`."""
    steps = [path for path in out.glob("checkpoint-*") if path.is_dir() and path.name.rpartition("-")[2].isdigit()]
    names = [path.name for path in sorted(steps, key=lambda path: int(path.name.rpartition("-")[2]))]
    whole = any((out / name).is_file() for name in ("config.json", ADAPTER_CONFIG))
    return [*names, FINAL] if whole else names


def policy_folder(out: Path, policy: str) -> tuple[str, Path]:
    """Name and folder of a policy of `out`: final, checkpoint-N, or last. Raises UserError for what is not there."""
    names = saved_names(out)
    if not names:
        raise UserError(f"{out} holds no model: give the folder of a trainer, with config.json or checkpoint-N in it")
    name = names[-1] if policy == LAST else policy
    if name not in names:
        raise UserError(f"--policy {policy}: {out.name} has {', '.join(names)}")
    return name, out if name == FINAL else out / name


def stored_policy(store: ArtifactStore, name: str, folder: Path) -> PolicyVersion:
    """Puts the policy in a folder into the store, in float32, an adapter merged into its base.

    What is certified stays when the trainer removes its checkpoint. Raises UserError for what is no causal language
    model in safetensors with its tokenizer, and for weights that were stored with another tokenizer.
    """
    whole = checkpoint_folder(folder)
    if problem := checkpoint_problem(whole):
        raise UserError(f"{folder} {problem}")
    stored = store_reference(store, whole, dtype=DTYPE)
    if _how_texts_are_read(whole) != _how_texts_are_read(store.folder(stored.path)):
        raise UserError(
            f"{folder}: these weights were certified with another tokenizer, chat template or end of text; restore it,"
            " or save the model to a folder of its own"
        )
    return PolicyVersion(stored.number, name, stored.sha256, stored.path)


def _how_texts_are_read(folder: Path) -> tuple[str, str | None, tuple[int, ...]]:
    tokenizer = load_tokenizer(folder)
    return fingerprint(tokenizer), tokenizer.chat_template, stop_ids(tokenizer, folder)


def prompts_of(file: Path, model: Path, max_tokens: int) -> list[Prompt]:
    """The prompts of a file of JSON lines, as TRL hands them to a model: a string as it stands with the special tokens
    that the tokenizer adds, turns by the tokenizer's own chat template. A prompt in several rows comes several times.

    Raises UserError for a row without `prompt`, and for one that leaves no room for `max_tokens` more.
    """
    tokenizer, room = load_tokenizer(model), _context(model)
    rows = list(json_rows(file))
    prompts = [_prompt(tokenizer, where, row) for _, where, row in rows]
    if not prompts:
        raise UserError(f'--prompts: {file} holds no prompt; write {{"prompt": "..."}}, one a line')
    for prompt, (_, where, _) in zip(prompts, rows, strict=True):
        if room is not None and len(prompt.token_ids) + max_tokens > room:
            raise UserError(
                f"{where}: {len(prompt.token_ids)} tokens and --max-tokens {max_tokens} are more than the {room} that"
                " the model reads; lower --max-tokens, or leave the row out"
            )
    return prompts


def _prompt(tokenizer: Any, where: str, row: Any) -> Prompt:
    from jinja2 import TemplateError

    turns = asked_turns(row, where)
    prompt = row["prompt"]
    if turns and not tokenizer.chat_template:
        raise UserError(f"{where} has turns, and the tokenizer has no chat template; write the prompt as one string")
    try:
        text = (
            tokenizer.apply_chat_template(as_dicts(turns), tokenize=False, add_generation_prompt=True)
            if turns
            else prompt
        )
    except TemplateError as error:
        raise UserError(f"{where}: the tokenizer's chat template refuses these turns ({error})") from error
    ids = tuple(tokenizer(text, add_special_tokens=not turns)["input_ids"])
    if not ids:
        raise UserError(f"{where}: the prompt has no tokens")
    name = hashlib.sha256(json.dumps([text, ids]).encode()).hexdigest()[:16]
    return Prompt(f"prompt-{name}", ids, for_reading(turns) if turns else prompt, turns)


def _context(model: Path) -> int | None:
    """Tokens that a model reads at most, where its configuration says so."""
    tokens = json.loads((model / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    return tokens if isinstance(tokens, int) and tokens > 0 else None
