"""Models as sources of limits: sequence classifiers, score models, and a tokenizer that counts.

A classifier says yes where the named label has a probability of at least `threshold` (a half); under `mean` the
probability itself is the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.special import expit

from pddpo_ray.config import ScorerConfig
from pddpo_ray.errors import UserError
from pddpo_ray.limits.quantities import Scale
from pddpo_ray.limits.reading import number_of
from pddpo_ray.limits.sources import Answer, Source, fingerprint, one_by_one
from pddpo_ray.scoring.interface import AskedText
from pddpo_ray.scoring.limit_profanity import verdicts
from pddpo_ray.scoring.stored_scorers import load_scorer
from pddpo_ray.storage.artifacts import file_sha256
from pddpo_ray.storage.checkpoints import checkpoint_folder, weight_files

BATCH = 32
SETTINGS = ("label", "template", "scale", "shift", "max_tokens", "batch")


def classifier_source(where: str, name: str, options: Mapping[str, Any], scale: Scale, folder: Path) -> Source:
    """A classifier by folder or hub name. Raises UserError for a label that it has not."""
    threshold = number_of(f"{where}.threshold", options.get("threshold", 0.5), share=True)
    label = options.get("label")
    source = _model_folder(where, name, folder)
    labels = _labels(where, source)
    if label is None and len(labels) > 1:
        raise UserError(f"{where}: {name} has the labels {', '.join(labels)}; say which with `label`")
    scorer = load_scorer(source, _settings(where, options))

    def measure(answers: Sequence[Answer]) -> list[object]:
        return verdicts(expit(scorer.score_texts(_texts(answers))), scale.verdict, threshold)

    called = f"classifier {name}" + (f", label {label}" if label else "")
    identity = f"{called} {threshold:g} {fingerprint(scorer.template, _identity(source))}"
    return Source(called, identity, measure, scale, BATCH)


def score_model_source(where: str, name: str, options: Mapping[str, Any], scale: Scale, folder: Path) -> Source:
    """A reward or cost model; the value is its score."""
    source, settings = _model_folder(where, name, folder), _settings(where, options)
    scorer = load_scorer(source, settings)

    def measure(answers: Sequence[Answer]) -> list[object]:
        return list(scorer.score_texts(_texts(answers)))

    identity = f"score model {fingerprint(settings.model_dump_json(), scorer.template, _identity(source))}"
    return Source(f"score model {name}", identity, measure, scale, BATCH)


def tokens_source(where: str, tokenizer: str, scale: Scale, folder: Path) -> Source:
    """Tokens by a model's own tokenizer, without those that mark beginning and end."""
    from transformers import AutoTokenizer

    source = _model_folder(where, tokenizer, folder)
    try:
        loaded = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise UserError(f"{where}.tokenizer: {tokenizer} has none: {str(error).splitlines()[0]}") from error

    def count(answer: Answer) -> int:
        return len(loaded(answer.response, add_special_tokens=False)["input_ids"])

    return Source("rule tokens", f"tokens {fingerprint(loaded.backend_tokenizer.to_str())}", one_by_one(count), scale)


def _texts(answers: Sequence[Answer]) -> list[AskedText]:
    return [(answer.turns or answer.prompt, answer.response) for answer in answers]


def _settings(where: str, options: Mapping[str, Any]) -> ScorerConfig:
    try:
        return ScorerConfig(**{key: options[key] for key in SETTINGS if key in options})
    except ValueError as error:
        raise UserError(f"{where}: {str(error).splitlines()[1]}: {str(error).splitlines()[2].strip()}") from error


def _model_folder(where: str, name: str, folder: Path) -> Path:
    """A folder beside the file that names it, else a folder or hub name as it stands."""
    if not name:
        raise UserError(f"{where} names a folder or a hub name owner/model")
    try:
        return folder / name if (folder / name).is_dir() else checkpoint_folder(name)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _labels(where: str, folder: Path) -> list[str]:
    from transformers import AutoConfig

    try:
        return [str(label) for label in AutoConfig.from_pretrained(folder).id2label.values()]
    except (OSError, ValueError) as error:
        raise UserError(f"{where}: {folder} is no model: {str(error).splitlines()[0]}") from error


def _identity(folder: Path) -> str:
    """Hash over the configuration and the weights."""
    return fingerprint(*(file_sha256(file) for file in [folder / "config.json", *weight_files(folder)]))
