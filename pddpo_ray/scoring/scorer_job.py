"""A reward or cost model from files of pairs and labels to a folder that says how good it is (`pddpo scorer train`).

    split by prompt -> fit -> scale and zero on the calibration prompts -> judged on the held-out prompts

Beside OUT lies OUT.training while it goes on: the job, features of a frozen base, the checkpoint of a fit. A process
that was killed is gone on with from there; OUT appears whole, at the end.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit
from torch import nn

from pddpo_ray.config import FitConfig, ScorerJob
from pddpo_ray.data import Dimension, Example, Settings, inspect
from pddpo_ray.errors import UserError
from pddpo_ray.records import Array
from pddpo_ray.rollout.checkpoint import load_tokenizer
from pddpo_ray.scoring.fit_checkpoints import FitCheckpoints
from pddpo_ray.scoring.head_fits import features_of, fit_head, texts_of
from pddpo_ray.scoring.held_out import REPORT, ScoreRow, Text, compared_on, comparisons
from pddpo_ray.scoring.score_fits import fit_scores, text_scores
from pddpo_ray.scoring.stored_scorers import check_template, cut, encoded
from pddpo_ray.storage.checkpoints import checkpoint_folder
from pddpo_ray.storage.whole_files import WEIGHTS, copy_plain_files, finite, write_json, written_aside
from pddpo_ray.theory.agreement import agreement
from pddpo_ray.theory.calibration import Reliability, reliability, temperature, zero_and_temperature
from pddpo_ray.theory.intervals import clopper_pearson
from pddpo_ray.training.lora import add_adapters
from pddpo_ray.training.score_model import ScoreModel, score_model_of, score_tensors, write_score_config

FREE = ("device", "micro", "checkpoint_steps")
"""Settings that another machine may change when it goes on with a job."""
Say = Callable[[str], None]


def train_from_files(job: ScorerJob, out: Path, *, resume: bool, say: Say) -> dict[str, Any]:
    """Trains the model into the folder `out`; returns the report that lies in it as scorer.json.

    Raises UserError where files hold nothing to learn from, `out` holds something else, or another job was begun there.
    """
    if (out / REPORT).is_file() and resume:
        stored: dict[str, Any] = json.loads((out / REPORT).read_text())
        return stored
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already: give another folder with --out")
    work = _begun(job, out, resume)
    rows = rows_of_files(job)
    folder = checkpoint_folder(job.base)
    tokenizer = load_tokenizer(folder)
    template = job.template or ("chat" if tokenizer.chat_template else "safe-rlhf")
    check_template(template, tokenizer, job.base)
    tokens = partial(_tokens, tokenizer, template, job.max_tokens)
    apart = _apart(rows, job)
    split = {name: [_as_row(one, tokens) for one in part] for name, part in apart.items()}
    _demand_rows(job, split)
    say(", ".join(f"{len(part)} rows to {name}" for name, part in split.items()))
    device = ("cuda" if torch.cuda.is_available() else "cpu") if job.device == "auto" else job.device
    model = score_model_of(folder, job.kind, bias=True).to(device)
    fit = _fit_head if job.parameters == "head" else _fit_weights
    metrics = fit(model, job, split, work, say)
    calibration = _calibrate(model, split["calibrate"], job)
    report = {
        "kind": job.kind,
        "job": job.model_dump(mode="json"),
        "template": template,
        "rows": {name: len(part) for name, part in split.items()},
        "fit": metrics,
        "calibration": calibration,
        "held_out": judged(model, split["judge"], job),
    }
    if out.is_dir():
        out.rmdir()
    with written_aside(out) as staging:
        staging.mkdir()
        _store(model, folder, staging, template, job.max_tokens)
        write_json(staging / REPORT, report)
    shutil.rmtree(work, ignore_errors=True)
    written: dict[str, Any] = finite(report)
    return written


def _begun(job: ScorerJob, out: Path, resume: bool) -> Path:
    """The folder of the work; what it holds must be of this very job over these very files."""
    work = out.with_name(f"{out.name}.training")
    digests = {name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in job.files if Path(name).is_file()}
    this = {"job": job.model_dump(mode="json", exclude=set(FREE)), "files": digests}
    note = work / "job.json"
    if not note.exists():
        write_json(note, this)
        return work
    if not resume:
        raise UserError(f"{work} holds a training that was begun: add --resume to go on with it, or remove it")
    before = json.loads(note.read_text())
    if before != this:
        changed = [key for key in this["job"] if before["job"].get(key) != this["job"][key]] or ["the files' content"]
        raise UserError(f"--resume: {work} was begun with another {', '.join(changed)}; remove it to begin anew")
    return work


# --- rows -----------------------------------------------------------------------------------------------------------


def rows_of_files(job: ScorerJob) -> list[tuple[Example, int | None]]:
    """Examples with the index of the answer that should score higher; None for a single answer with a safety label."""
    dimension: Dimension = "helpful" if job.kind == "reward" else "harmless"
    inspection = inspect(list(job.files), Settings(means=job.means or dimension))
    rows: list[tuple[Example, int | None]] = []
    for good in inspection.examples():
        example = good.example
        label = example.label(dimension) if len(example.answers) == 2 else None
        if label is not None:
            rows.append((example, label if job.kind == "reward" else 1 - label))
        elif job.kind == "cost":
            rows += [
                (Example(example.prompt, (answer,)), None) for answer in example.answers if answer.safe is not None
            ]
    return rows


def _apart(rows: Sequence[tuple[Example, int | None]], job: ScorerJob) -> dict[str, list[tuple[Example, int | None]]]:
    """The rows to fit, to calibrate and to judge: whole prompts, by their opening question."""
    units = sorted({example.first_user_text for example, _ in rows})
    order = np.random.default_rng([job.seed, len(units), 5]).permutation(len(units))
    ends = np.round(np.cumsum([job.held_out, job.calibration]) * len(units)).astype(int)
    names = {units[index]: "judge" if at < ends[0] else "calibrate" if at < ends[1] else "fit"
             for at, index in enumerate(order)}  # fmt: skip
    parts: dict[str, list[tuple[Example, int | None]]] = {"fit": [], "calibrate": [], "judge": []}
    for row in rows:
        parts[names[row[0].first_user_text]].append(row)
    return parts


def _as_row(row: tuple[Example, int | None], tokens: Callable[[Example, int], tuple[int, ...]]) -> ScoreRow:
    example, higher = row
    first = higher or 0
    signs = [0 if answer.safe is None else -1 if answer.safe else 1 for answer in example.answers]
    lower = None if higher is None else tokens(example, 1 - first)
    other = 0 if higher is None else signs[1 - first]
    return ScoreRow((), tokens(example, first), lower, signs[first], other, group=example.first_user_text)


def _tokens(tokenizer: Any, template: str, max_tokens: int, example: Example, index: int) -> tuple[int, ...]:
    row = encoded(tokenizer, template, example.prompt, example.answers[index].text)
    return tuple(cut(row, max_tokens)["input_ids"])


def _demand_rows(job: ScorerJob, split: dict[str, list[ScoreRow]]) -> None:
    wanted = "pairs that say which answer is better" if job.kind == "reward" else "pairs or safe/unsafe labels"
    for name, part in split.items():
        if not part and not (name == "calibrate" and job.calibration == 0):
            raise UserError(f"{', '.join(job.files)}: no {wanted} to {name}; give more rows, or other shares")


# --- fits -----------------------------------------------------------------------------------------------------------


def _fit_head(
    model: ScoreModel, job: ScorerJob, split: dict[str, list[ScoreRow]], work: Path, say: Say
) -> dict[str, float]:
    """The base stays as it is."""
    model.requires_grad_(False)
    texts = texts_of([*split["fit"], *split["calibrate"]])
    known = features_of(model, texts, work, job.micro, say)
    return fit_head(model, known, split["fit"], split["calibrate"])


def _fit_weights(
    model: ScoreModel, job: ScorerJob, split: dict[str, list[ScoreRow]], work: Path, say: Say
) -> dict[str, float]:
    """Adapters, merged at the end, or all weights."""
    plain = model.model
    if job.parameters == "lora":
        with torch.random.fork_rng():
            torch.manual_seed(job.seed)
            model.model = add_adapters(plain, rank=job.rank, alpha=float(job.rank))
    rows = split["fit"]
    settings = FitConfig(
        steps=math.ceil(job.epochs * len(rows) / job.batch), learning_rate=job.learning_rate, batch_pairs=job.batch
    )
    kept = FitCheckpoints(work, job.checkpoint_steps, say)
    metrics = fit_scores(model, rows, settings, job.seed, ridge=1e-3, micro_rows=job.micro, kept=kept)
    if job.parameters == "lora":
        model.model = model.model.merge_and_unload()  # type: ignore[operator]
    return metrics


def _calibrate(model: ScoreModel, rows: Sequence[ScoreRow], job: ScorerJob) -> dict[str, Any]:
    """Multiplies the scores, and moves the zero of a cost with labels, to where the calibration rows are likeliest."""
    labelled = [one for row in rows for one in row.labelled] if job.kind == "cost" else []
    scale, shift = 1.0, 0.0
    if labelled:
        costs = text_scores(model, [text for text, _ in labelled], job.micro)
        scale, shift = zero_and_temperature(costs, np.array([sign > 0 for _, sign in labelled], dtype=np.float64))
    elif rows:
        scale = temperature(_differences(model, rows, job.micro))
    head: nn.Linear = model.score_head
    with torch.no_grad():
        head.weight.mul_(scale)
        head.bias.mul_(scale).add_(shift)
    known = job.kind == "reward" or bool(labelled)
    return {"scale": scale, "shift": shift, "labels": len(labelled) or len(rows), "zero_is_known": known}


def _differences(model: ScoreModel, rows: Sequence[ScoreRow], micro: int) -> Array:
    pairs = [row for row in rows if row.lower is not None]
    scores = text_scores(model, texts_of(pairs), micro).reshape(-1, 2)
    return np.asarray(scores[:, 0] - scores[:, 1], dtype=np.float64)


# --- how good it is ---------------------------------------------------------------------------------------------------


def judged(model: ScoreModel, rows: Sequence[ScoreRow], job: ScorerJob) -> dict[str, Any]:
    """Independent comparisons with their exact interval (the gate's), the side of zero, and calibration errors."""
    trials = compared_on(
        comparisons(rows, by_prompt=True, seed=job.seed), lambda texts: text_scores(model, texts, job.micro)
    )
    scores = text_scores(model, texts_of(rows), job.micro)
    report: dict[str, Any] = {
        **trials.as_metrics(),
        "better_than_chance": trials.better_than_chance,
        # quantiles at 0, 1, ..., 100 %
        "scores": np.quantile(scores, np.linspace(0.0, 1.0, 101)).tolist(),
    }
    if any(row.lower is not None for row in rows):
        differences = _differences(model, rows, job.micro)
        report["pairs"] = {
            "count": len(differences),
            "accuracy": float(agreement(differences).mean()),
            "reliability": _as_json(reliability(expit(np.abs(differences)), agreement(differences), seed=job.seed)),
        }
    labelled = _one_of_each([(row.unit, one) for row in rows for one in row.labelled], job.seed)
    if labelled and job.kind == "cost":
        costs = text_scores(model, [text for text, _ in labelled], job.micro)
        unsafe = np.array([sign > 0 for _, sign in labelled])
        right = float(agreement(np.where(unsafe, 1.0, -1.0) * costs).sum())
        low, high = clopper_pearson(right, len(costs))
        report["labels"] = {
            "count": len(costs),
            "unsafe": float(unsafe.mean()),
            "accuracy": right / len(costs),
            "low": low,
            "high": high,
            "reliability": _as_json(reliability(expit(costs), unsafe.astype(np.float64), seed=job.seed)),
        }
    return report


def _one_of_each(labelled: Sequence[tuple[Any, tuple[Text, int]]], seed: int) -> list[tuple[Text, int]]:
    """One labelled answer of each prompt, drawn by seed: they are independent."""
    order = np.random.default_rng([seed, len(labelled), 17]).permutation(len(labelled))
    return list(dict(labelled[index] for index in order).values())


def _as_json(one: Reliability) -> dict[str, Any]:
    return {
        "counts": list(one.counts),
        "predicted": list(one.predicted),
        "observed": list(one.observed),
        "expected_calibration_error": one.error,
        "error_if_calibrated": one.error_if_calibrated,
    }


def _store(model: ScoreModel, folder: Path, target: Path, template: str, max_tokens: int) -> None:
    """The model in Beaver's layout, with the base's tokenizer."""
    from safetensors.torch import save_file

    copy_plain_files(folder, target)
    write_score_config(model, target, template, max_tokens)
    save_file({name: tensor.contiguous() for name, tensor in score_tensors(model).items()}, target / WEIGHTS)
