"""Checks that a recipe's files, models and packages exist before a run begins."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pddpo_ray.config.document import Keys, Origins, origin_of
from pddpo_ray.config.recipe import Config
from pddpo_ray.config.sections.rollout import VllmRollout
from pddpo_ray.config.sections.scorers import StoredScorerConfig
from pddpo_ray.config.sections.world import TabularWorldConfig
from pddpo_ray.errors import UserError, missing_extra
from pddpo_ray.limits.former import at
from pddpo_ray.storage.checkpoints import (
    adapter_problem,
    checkpoint_folder,
    checkpoint_problem,
    is_adapter,
    is_hub_name,
    longest_context,
)

HUB = "hf:"
"""Prefix of a hub data set's name."""


def demand_files(config: Config, origins: Origins) -> None:
    """Raises UserError for a missing setting or a path that does not exist; downloads a hub model the first time."""
    _check_needs(config)
    _check_texts(config, origins)
    file = config.world.path if isinstance(config.world, TabularWorldConfig) else None
    if file is not None and not Path(file).is_file():
        origin = origin_of(("world", "path"), origins)
        raise UserError(f"{origin}: world.path {file} does not exist; give the path of a world file (JSON)")
    if config.model.reference is not None:
        origin, reference = origin_of(("model", "reference"), origins), config.model.reference
        folder = checkpoint_folder(reference) if is_hub_name(reference) or is_adapter(reference) else Path(reference)
        problem = checkpoint_problem(folder)
        if problem is None and config.model.parameters.kind == "lora":
            problem = adapter_problem(folder)
        if problem:
            raise UserError(f"{origin}: model.reference {reference} {problem}")
        _check_context(config, folder, origins)


def _check_context(config: Config, folder: Path, origins: Origins) -> None:
    """Refuses a context longer than the model's, before vLLM does so late in the start."""
    room = longest_context(folder)
    if room is not None and isinstance(config.rollout, VllmRollout) and config.rollout.max_model_len > room:
        origin = origin_of(("rollout", "max_model_len"), origins) or origin_of(("model", "reference"), origins)
        raise UserError(
            f"{origin}: rollout.max_model_len is {config.rollout.max_model_len}, but model.reference has {room}"
            f" positions: give rollout.max_model_len={room}, or less"
        )


def _check_needs(config: Config) -> None:
    """Raises UserError that names every setting which the recipe leaves to the user and the user left out."""
    needs = {**(_needs_of_files(config) if config.data else {}), **config.needs}
    if config.data and config.data.reference is not None:  # a trial on a small model made from the texts
        needs.pop("model.reference", None)
    tree = config.model_dump(mode="json")
    empty: tuple[Any, ...] = (None, [], {}, "")
    missing = {key: need for key, need in needs.items() if at(tree, tuple(key.split("."))) in empty}
    if missing:
        text = "; ".join(f"{key}, {need}" for key, need in missing.items())
        raise UserError(f"still to be given: {text}")


def _needs_of_files(config: Config) -> dict[str, str]:
    """The model and pairs that a run on files needs, unless the recipe is a trial."""
    data = config.data
    assert data is not None
    needs = {}
    if data.reference is None:
        needs["model.reference"] = "the model to align, e.g. model.reference=models/smollm2"
    if not (data.sample or data.helpful or data.harmless):
        needs["data.helpful"] = "files of pairs, e.g. data.helpful=[helpful.jsonl] (`pddpo data check helpful.jsonl`)"
    return needs


def _check_texts(config: Config, origins: Origins) -> None:
    """Raises UserError for a missing file of pairs or prompts; hub data sets are looked up when read."""
    data = config.data
    if data is None:
        return
    file_lists: dict[Keys, list[str]] = {
        ("data", "helpful"): data.helpful,
        ("data", "harmless"): data.harmless,
        ("data", "prompts"): data.prompts,
        ("certificate", "prompts"): config.certificate.prompts,
        ("scorecard", "benign_files"): config.scorecard.benign_files,
    }
    file_lists |= {("prompts", name, "files"): prompt_set.files or [] for name, prompt_set in config.prompts.items()}
    for keys, files in file_lists.items():
        for file in files:
            if not file.startswith(HUB) and not Path(file).expanduser().exists():
                origin = origin_of(keys, origins)
                raise UserError(
                    f"{f'{origin}: ' if origin else ''}{'.'.join(keys)}: there is no file {file}; give the path of a"
                    " file or folder (`pddpo data check PATH` says what is in it)"
                )


def missing_scorers(config: Config) -> Iterator[tuple[Keys, str]]:
    """Yields setting and remedy for each reward or cost model that is neither on this machine nor a hub name."""
    scorers: dict[Keys, StoredScorerConfig | None] = {
        ("scorecard", "scorers", kind): scorer for kind, scorer in config.scorecard.scorers.items()
    }
    scorers |= {("feedback", kind): getattr(config.score_models, kind) for kind in config.asked_models}
    scorer_paths = [(keys, ".path", keys[-1], scorer.path) for keys, scorer in scorers.items() if scorer is not None]
    limits = [limit for limit in config.stated if limit.source.kind == "score_model"]
    scorer_paths += [
        (("limits", limit.limit.name), "", "reward" if limit.limit.at_least else "cost", limit.source.what)
        for limit in limits
    ]
    for keys, last, kind, path in scorer_paths:
        if not Path(path).is_dir() and not is_hub_name(path):
            yield (
                keys,
                f"{'.'.join(keys)}{last}: there is no folder {path}; `pddpo scorer train FILES --kind {kind} --base"
                f" MODEL --out {path}` makes it, or name another one",
            )


def missing_before(config: Config) -> Iterator[tuple[Keys, str]]:
    """Yields setting and remedy for what a run lacks to begin; a dry run does without."""
    yield from missing_scorers(config)
    if config.model.in_nf4 and find_spec("bitsandbytes") is None:
        keys = ("model", "parameters", "quantise")
        yield keys, f"{'.'.join(keys)}=nf4: {missing_extra('bitsandbytes')}"


def demand_before(config: Config, origins: Origins) -> None:
    for keys, problem in missing_before(config):
        origin = origin_of(keys, origins)
        raise UserError(f"{f'{origin}: ' if origin else ''}{problem}")
