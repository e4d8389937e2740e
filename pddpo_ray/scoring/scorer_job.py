"""A reward or cost model from files of pairs and labels to a folder that says how good it is (`pddpo scorer train`).

    split by prompt -> fit -> scale and zero on the calibration prompts -> judged on the held-out prompts

OUT.training is next to OUT during the training: the job, features of a frozen base, the checkpoint of a fit. A process
that was killed continues from there; OUT appears whole, at the end.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pddpo_ray.config import FitConfig, ScorerJob
from pddpo_ray.data import Dimension, Example, Settings, inspect
from pddpo_ray.errors import UserError
from pddpo_ray.rollout.checkpoint import load_tokenizer
from pddpo_ray.scoring.held_out import REPORT, Part, ScoreRow, parts_of
from pddpo_ray.scoring.learned_prompts import LEARNED, hashes_of
from pddpo_ray.scoring.scorer_training import Say, ScorerRows, judged, make_scorer, write_scorer
from pddpo_ray.scoring.stored_scorers import check_template, cut, encoded
from pddpo_ray.storage.checkpoints import checkpoint_folder
from pddpo_ray.storage.whole_files import finite, write_json, written_aside

FREE = ("device", "micro", "checkpoint_steps")
"""Settings that another machine may change when it continues a job."""


def train_from_files(job: ScorerJob, out: Path, *, resume: bool, say: Say) -> dict[str, Any]:
    """Trains the model into the folder `out`; returns the report that lies in it as scorer.json.

    Raises UserError where files hold nothing to learn from, `out` holds something else, or another job was begun there.
    """
    if (out / REPORT).is_file() and resume:
        stored: dict[str, Any] = json.loads((out / REPORT).read_text())
        return stored
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already: give another folder with --out")
    work = _open_work_folder(job, out, resume)
    rows = _draw_rows(rows_of_files(job), job)
    folder = checkpoint_folder(job.base)
    tokenizer = load_tokenizer(folder)
    template = job.template or ("chat" if tokenizer.chat_template else "safe-rlhf")
    check_template(template, tokenizer, job.base)
    tokens = partial(_tokens, tokenizer, template, job.max_tokens)
    parts = parts_of([example.first_user_text for example, _ in rows], job.held_out, job.calibration, job.seed)
    counted: dict[Part, list[ScoreRow]] = {"fit": [], "calibrate": [], "judge": []}
    for row, part in zip(rows, parts, strict=True):
        counted[part].append(_as_row(row, tokens))
    _demand_rows(job, counted)
    say(", ".join(f"{len(part)} rows to {name}" for name, part in counted.items()))
    split = ScorerRows(**counted)
    steps = math.ceil(job.epochs * len(split.fit) / job.batch)
    fit = FitConfig(steps=steps, learning_rate=job.learning_rate, batch_pairs=job.batch)
    scorer = make_scorer(job.kind, folder, split, job, fit, seed=job.seed, work=work, say=say)
    report = {
        "kind": job.kind,
        "job": job.model_dump(mode="json"),
        "template": template,
        "rows": {name: len(part) for name, part in counted.items()},
        "fit": scorer.fit,
        "calibration": scorer.calibration,
        "held_out": judged(scorer.model, job.kind, split.judge, job, seed=job.seed),
        LEARNED: hashes_of(row.group or "" for row in (*split.fit, *split.calibrate)),
    }
    if out.is_dir():
        out.rmdir()
    with written_aside(out) as staging:
        staging.mkdir()
        write_scorer(scorer.model, folder, staging, template, job.max_tokens)
        write_json(staging / REPORT, report)
    shutil.rmtree(work, ignore_errors=True)
    written: dict[str, Any] = finite(report)
    return written


def _open_work_folder(job: ScorerJob, out: Path, resume: bool) -> Path:
    """The work folder. UserError unless it is new, or resumes this very job over these files."""
    work = out.with_name(f"{out.name}.training")
    digests = {name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in job.files if Path(name).is_file()}
    this = {"job": job.model_dump(mode="json", exclude=set(FREE)), "files": digests}
    note = work / "job.json"
    if not note.exists():
        write_json(note, this)
        return work
    if not resume:
        raise UserError(f"{work} holds a training that was begun: add --resume to continue it, or remove it")
    before = json.loads(note.read_text())
    # a job of an older version lacks settings that were added since: it began with their defaults
    before["job"] = {**_defaults(), **before["job"]}
    if before != this:
        settings = dict.fromkeys([*this["job"], *before["job"]])
        changed = [key for key in settings if before["job"].get(key) != this["job"].get(key)] or ["the files' content"]
        raise UserError(f"--resume: {work} was begun with another {', '.join(changed)}; remove it to begin anew")
    return work


def _defaults() -> dict[str, Any]:
    """The default of every setting that has one."""
    job = ScorerJob(kind="cost", files=("",), base="")
    return job.model_dump(mode="json", exclude={"kind", "files", "base", *FREE})


# --- rows -----------------------------------------------------------------------------------------------------------


def rows_of_files(job: ScorerJob) -> list[tuple[Example, int | None]]:
    """Examples with the index of the answer that should score higher; None for a single answer with a safety label."""
    dimension: Dimension = "helpful" if job.kind == "reward" else "harmless"
    inspection = inspect(list(job.files), _settings(job, dimension))
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


def _settings(job: ScorerJob, dimension: Dimension) -> Settings:
    return Settings(means=job.means or dimension, columns=job.columns, ignore=frozenset(job.ignore))


def _draw_rows(rows: list[tuple[Example, int | None]], job: ScorerJob) -> list[tuple[Example, int | None]]:
    """As many rows as the job takes, drawn by its seed, in their order."""
    chosen = np.random.default_rng([job.seed, len(rows), 3]).permutation(len(rows))[: job.rows]
    return [rows[index] for index in sorted(chosen)]


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


def _demand_rows(job: ScorerJob, split: Mapping[Part, Sequence[ScoreRow]]) -> None:
    need = "pairs that say which answer is better" if job.kind == "reward" else "pairs or safe/unsafe labels"
    for name, part in split.items():
        if not part and not (name == "calibrate" and job.calibration == 0):
            raise UserError(f"{', '.join(job.files)}: no {need} to {name}; give more rows, or other shares")
