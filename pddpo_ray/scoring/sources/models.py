"""Models as sources of limits: sequence classifiers, score models, and a tokenizer that counts.

A classifier says yes where the named label has a probability of at least `threshold` (a half); under `mean` the
probability itself is the value. A score model says yes where its score is above `above` (0, where a cost's sides meet);
`versus: reference` it says which of two answers has the higher score; under `mean` the score itself is the value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.special import expit

from pddpo_ray.config import ScorerConfig
from pddpo_ray.errors import UserError, one_line
from pddpo_ray.limits.quantities import VERDICT
from pddpo_ray.limits.sources import NO_REFERENCE, Answer, Measure, Opening, Source, fingerprint, one_by_one
from pddpo_ray.limits.written_numbers import number_of
from pddpo_ray.scoring.held_out import REPORT
from pddpo_ray.scoring.interface import AskedText
from pddpo_ray.scoring.sources.profanity import verdicts
from pddpo_ray.scoring.stored_scorers import load_scorer
from pddpo_ray.storage.artifacts import file_sha256
from pddpo_ray.storage.checkpoints import checkpoint_folder, weight_files
from pddpo_ray.theory.agreement import agreement

BATCH = 32
Says = Literal["score", "verdict", "comparison"]
"""What a score model's source gives: its score, whether it is above a bound, or whether the reference's is lower."""
SETTINGS = ("label", "template", "scale", "shift", "max_tokens", "batch")


def classifier_source(opening: Opening) -> Source:
    """A classifier by folder or hub name. Raises UserError for a label that it has not."""
    where, name, options, scale = opening.where, opening.what, opening.options, opening.scale
    threshold = number_of(f"{where}.threshold", options.get("threshold", 0.5), share=True)
    label = options.get("label")
    source = _model_folder(where, name, opening.folder)
    labels = _labels(where, source)
    if label is None and len(labels) > 1:
        raise UserError(f"{where}: {name} has the labels {', '.join(labels)}; say which with `label`")
    scorer = load_scorer(source, _settings(where, options))

    def measure(answers: Sequence[Answer]) -> list[object]:
        return verdicts(expit(scorer.score_texts(_texts(answers))), scale.verdict, threshold)

    called = f"classifier {name}" + (f", label {label}" if label else "")
    identity = f"{called} {threshold:g} {fingerprint(scorer.template, _identity(source))}"
    return Source(called, identity, measure, scale, BATCH)


def score_model_source(opening: Opening) -> Source:
    """A reward or cost model. Raises UserError for a verdict by a model whose zero means nothing."""
    where, name, options = opening.where, opening.what, opening.options
    says: Says = "comparison" if opening.comparing else "verdict" if opening.kind == "rate" else "score"
    source, settings = _model_folder(where, name, opening.folder), _settings(where, options)
    above = number_of(f"{where}.above", options.get("above", 0.0), share=False)
    if says == "verdict" and "above" not in options and not _zero_is_known(source):
        raise UserError(
            f"{where}: the zero of {name} means nothing, since no row that it learned from says which answer is safe:"
            " train it on safe/unsafe labels too, or state from which score on it says yes, e.g. `above: 0.5`"
        )
    scorer = load_scorer(source, settings)

    def measure(answers: Sequence[Answer]) -> list[object]:
        return list(scorer.score_texts(_texts(answers)))

    def verdict(answers: Sequence[Answer]) -> list[object]:
        return [math.nan if math.isnan(raw) else raw > above for raw in scorer.score_texts(_texts(answers)).tolist()]

    def comparison(answers: Sequence[Answer]) -> list[object]:
        with_reference = [answer for answer in answers if answer.reference is not None]
        if not with_reference:
            return [NO_REFERENCE] * len(answers)
        references = [replace(answer, response=answer.reference or "") for answer in with_reference]
        scores, other = scorer.score_texts(_texts([*with_reference, *references])).reshape(2, -1)
        wins = iter(np.where(np.isnan(scores - other), np.nan, agreement(scores - other)).tolist())
        return [NO_REFERENCE if answer.reference is None else next(wins) for answer in answers]

    measures: Mapping[Says, Measure] = {"score": measure, "verdict": verdict, "comparison": comparison}
    suffix = "" if says == "score" else f" {says} {above:g}" if says == "verdict" else f" {says}"
    identity = f"score model{suffix} {fingerprint(settings.model_dump_json(), scorer.template, _identity(source))}"
    return Source(f"score model {name}", identity, measures[says], VERDICT if says != "score" else opening.scale, BATCH)


def tokens_source(opening: Opening) -> Source:
    """Tokens by a model's own tokenizer, without those that mark beginning and end."""
    from transformers import AutoTokenizer

    where, tokenizer = opening.where, str(opening.options["tokenizer"])
    source = _model_folder(where, tokenizer, opening.folder)
    try:
        loaded = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise UserError(f"{where}.tokenizer: {tokenizer} has none: {one_line(error)}") from error

    def count(answer: Answer) -> int:
        return len(loaded(answer.response, add_special_tokens=False)["input_ids"])

    return Source(
        "rule tokens", f"tokens {fingerprint(loaded.backend_tokenizer.to_str())}", one_by_one(count), opening.scale
    )


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


def _zero_is_known(folder: Path) -> bool:
    """False where `pddpo scorer train` had no labels to set it by; the zero of other models is trusted."""
    report = folder / REPORT
    return not report.is_file() or bool(json.loads(report.read_text())["calibration"]["zero_is_known"])


def _labels(where: str, folder: Path) -> list[str]:
    from transformers import AutoConfig

    try:
        return [str(label) for label in AutoConfig.from_pretrained(folder).id2label.values()]
    except (OSError, ValueError) as error:
        raise UserError(f"{where}: {folder} is no model: {one_line(error)}") from error


def _identity(folder: Path) -> str:
    """Hash over the configuration and the weights."""
    return fingerprint(*(file_sha256(file) for file in [folder / "config.json", *weight_files(folder)]))
