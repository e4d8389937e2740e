"""How a reward or cost model is made, in a run and by `pddpo scorer train` alike.

    a language model's decoder -> fit (a head, adapters or all weights) -> scale and zero -> judged on held-out rows

Unfinished work is kept in a folder: features of a frozen base, the checkpoint of a fit. A killed process continues from
there, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit
from torch import nn

from pddpo_ray.config import FitConfig, ScorerFit
from pddpo_ray.errors import RunError
from pddpo_ray.records import Array
from pddpo_ray.scoring.fit_checkpoints import FitCheckpoints
from pddpo_ray.scoring.head_fits import features_of, fit_head, head_scores, texts_of
from pddpo_ray.scoring.held_out import (
    Kind,
    ScoreRow,
    Text,
    compared_on,
    comparisons,
)
from pddpo_ray.scoring.score_fits import fit_scores, text_scores
from pddpo_ray.storage.whole_files import WEIGHTS, copy_plain_files
from pddpo_ray.theory.agreement import agreement
from pddpo_ray.theory.calibration import Reliability, reliability, temperature, zero_and_temperature
from pddpo_ray.theory.intervals import clopper_pearson
from pddpo_ray.training.device import device_for, number_type
from pddpo_ray.training.models.lora import add_adapters
from pddpo_ray.training.models.score_model import ScoreModel, score_model_of, score_tensors, write_score_config
from pddpo_ray.training.passes.log_probs import device_of

RIDGE = 1e-3
"""Weight of the squared scores of lora and full: keeps them finite where the pairs leave no doubt."""
Say = Callable[[str], None]
Score = Callable[[Sequence[Text]], Array]
"""Scores of texts, in order. -> [n]"""


@dataclass(frozen=True)
class ScorerRows:
    """Rows to learn from, rows that set scale and zero, and rows that are only looked at to say how good it is."""

    fit: Sequence[ScoreRow]
    calibrate: Sequence[ScoreRow] = ()
    judge: Sequence[ScoreRow] = ()


@dataclass(frozen=True)
class MadeScorer:
    """A fitted model with what its fit and its calibration say."""

    model: ScoreModel
    fit: dict[str, float] = field(default_factory=dict)
    calibration: dict[str, Any] = field(default_factory=dict)


def make_scorer(
    kind: Kind,
    folder: Path,
    rows: ScorerRows,
    ways: ScorerFit,
    fit: FitConfig,
    *,
    seed: int,
    work: Path,
    say: Say,
    bias: bool = True,
) -> MadeScorer:
    """The model that starts as the language model in `folder`. `fit` is for adapters and whole weights alone.

    Raises RunError where there is no row to learn from or a gradient diverges.
    """
    if not rows.fit:
        raise RunError("there is no decided pair to fit a scorer on; check the labels that abstained or failed")
    model = score_model_of(folder, kind, bias=bias).to(device_for(ways.device))
    score: Score = partial(text_scores, model, batch=ways.micro)
    if ways.parameters == "head":
        metrics, score = _fit_head(model, rows, ways, work, say)
    else:
        metrics = _fit_weights(model, rows, ways, fit, work, say, seed=seed)
    return MadeScorer(model, metrics, _calibrate(model, kind, rows.calibrate, score))


# --- fits -----------------------------------------------------------------------------------------------------------


def _fit_head(
    model: ScoreModel, rows: ScorerRows, ways: ScorerFit, work: Path, say: Say
) -> tuple[dict[str, float], Score]:
    """The base stays as it is. -> metrics, and the scores of texts whose features are known already"""
    model.requires_grad_(False)
    # a frozen base may compute in a narrow type
    parameters = sum(parameter.numel() for parameter in model.parameters())
    model.model.to(dtype=getattr(torch, number_type(device_of(model).type, parameters)))
    texts = texts_of([*rows.fit, *rows.calibrate])
    features = features_of(model, texts, work, say)
    return fit_head(model, features, rows.fit, rows.calibrate), partial(head_scores, model, features)


def _fit_weights(
    model: ScoreModel,
    rows: ScorerRows,
    ways: ScorerFit,
    fit: FitConfig,
    work: Path,
    say: Say,
    *,
    seed: int,
) -> dict[str, float]:
    """Adapters, merged at the end, or all weights."""
    plain = model.model
    if ways.parameters == "lora":
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model.model = add_adapters(plain, rank=ways.rank, alpha=float(ways.rank))
    checkpoints = FitCheckpoints(work, ways.checkpoint_steps, say)
    metrics = fit_scores(model, rows.fit, fit, seed, ridge=RIDGE, micro_rows=ways.micro, checkpoints=checkpoints)
    if ways.parameters == "lora":
        model.model = model.model.merge_and_unload()  # type: ignore[operator]
    return metrics


def _calibrate(model: ScoreModel, kind: Kind, rows: Sequence[ScoreRow], score: Score) -> dict[str, Any]:
    """Scales the scores, and shifts a cost's zero where there are labels, to fit the calibration rows best."""
    labelled = [answer for row in rows for answer in row.labelled] if kind == "cost" else []
    scale, shift = 1.0, 0.0
    if labelled:
        costs = score([text for text, _ in labelled])
        scale, shift = zero_and_temperature(costs, np.array([sign > 0 for _, sign in labelled], dtype=np.float64))
    elif rows:
        scale = temperature(_differences(rows, score))
    if rows:
        head: nn.Linear = model.score_head
        with torch.no_grad():
            head.weight.mul_(scale)
            head.bias.mul_(scale).add_(shift)
    zero_known = kind == "reward" or bool(labelled)
    return {"scale": scale, "shift": shift, "labels": len(labelled) or len(rows), "zero_is_known": zero_known}


def _differences(rows: Sequence[ScoreRow], score: Score) -> Array:
    pairs = [row for row in rows if row.lower is not None]
    scores = score(texts_of(pairs)).reshape(-1, 2)
    return np.asarray(scores[:, 0] - scores[:, 1], dtype=np.float64)


# --- how good it is ---------------------------------------------------------------------------------------------------


def judged(
    model: ScoreModel, kind: Kind, rows: Sequence[ScoreRow], ways: ScorerFit, *, seed: int, by_prompt: bool = True
) -> dict[str, Any]:
    """Independent comparisons with their exact interval (the gate's), the side of zero, and calibration errors."""
    texts = texts_of(rows)
    scores = dict(zip(texts, text_scores(model, texts, ways.micro), strict=True))

    def scored(texts: Sequence[Text]) -> Array:
        return np.array([scores[text] for text in texts])

    trials = compared_on(comparisons(rows, by_prompt=by_prompt, seed=seed), scored)
    report: dict[str, Any] = {
        **trials.as_metrics(),
        "better_than_chance": trials.better_than_chance,
        # quantiles at 0, 1, ..., 100 %
        "scores": np.quantile(scored(texts_of(rows)), np.linspace(0.0, 1.0, 101)).tolist(),
    }
    if any(row.lower is not None for row in rows):
        differences = _differences(rows, scored)
        report["pairs"] = {
            "count": len(differences),
            "accuracy": float(agreement(differences).mean()),
            "reliability": _as_json(reliability(expit(np.abs(differences)), agreement(differences), seed=seed)),
        }
    labelled = _answer_per_prompt([(row.unit, answer) for row in rows for answer in row.labelled], seed)
    if labelled and kind == "cost":
        costs = scored([text for text, _ in labelled])
        unsafe = np.array([sign > 0 for _, sign in labelled])
        right = float(agreement(np.where(unsafe, 1.0, -1.0) * costs).sum())
        low, high = clopper_pearson(right, len(costs))
        report["labels"] = {
            "count": len(costs),
            "unsafe": float(unsafe.mean()),
            "accuracy": right / len(costs),
            "low": low,
            "high": high,
            "reliability": _as_json(reliability(expit(costs), unsafe.astype(np.float64), seed=seed)),
        }
    return report


def _answer_per_prompt(labelled: Sequence[tuple[Any, tuple[Text, int]]], seed: int) -> list[tuple[Text, int]]:
    """One labelled answer of each prompt, drawn by seed: they are independent."""
    order = np.random.default_rng([seed, len(labelled), 17]).permutation(len(labelled))
    return list(dict(labelled[index] for index in order).values())


def _as_json(diagram: Reliability) -> dict[str, Any]:
    return {
        "counts": list(diagram.counts),
        "predicted": list(diagram.predicted),
        "observed": list(diagram.observed),
        "expected_calibration_error": diagram.error,
        "error_if_calibrated": diagram.error_if_calibrated,
    }


def store_scorer(model: ScoreModel, folder: Path, target: Path, template: str, max_tokens: int | None = None) -> None:
    """All but the weights in Beaver's layout, with the base's tokenizer."""
    copy_plain_files(folder, target)
    write_score_config(model, target, template, max_tokens)


def write_scorer(model: ScoreModel, folder: Path, target: Path, template: str, max_tokens: int) -> None:
    """The whole model in Beaver's layout."""
    from safetensors.torch import save_file

    store_scorer(model, folder, target, template, max_tokens)
    save_file({name: tensor.contiguous() for name, tensor in score_tensors(model).items()}, target / WEIGHTS)
