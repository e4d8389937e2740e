"""The classifier of swear words that the package alt-profanity-check ships, as the source of a limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from pddpo_ray.errors import UserError
from pddpo_ray.limits.sources import Answer, Opening, Source
from pddpo_ray.limits.written_numbers import number_of

BATCH = 256
PROFANITY = "alt-profanity-check"


def profanity_source(opening: Opening) -> Source:
    """A linear classifier on word counts. Raises UserError for another label, and where it is not installed."""
    where, scale = opening.where, opening.scale
    threshold = number_of(f"{where}.threshold", opening.options.get("threshold", 0.5), share=True)
    label = opening.options.get("label")
    if label not in (None, "profane"):
        raise UserError(f"{where}: {PROFANITY} has the label profane; it has no label {label}")
    try:
        from profanity_check import predict_prob

        number = version(PROFANITY)
    except (ImportError, PackageNotFoundError) as error:
        raise UserError(f"{where}: {PROFANITY} is not installed: pip install {PROFANITY}") from error
    predict: Callable[[list[str]], Any] = predict_prob

    def measure(answers: Sequence[Answer]) -> list[object]:
        return verdicts(np.asarray(predict([answer.response for answer in answers])), scale.verdict, threshold)

    return Source(f"classifier {PROFANITY}", f"{PROFANITY} {number} {threshold:g}", measure, scale, BATCH)


def verdicts(chances: Any, verdict: bool, threshold: float) -> list[object]:
    """Verdicts or probabilities. NaN is passed through; the source rejects it."""
    return [bool(chance >= threshold) if verdict and np.isfinite(chance) else float(chance) for chance in chances]
