"""How many files a preference pair passes from the method's module to the arithmetic of its loss, and an answer from
its sampling to the step of the multiplier.

    python -m tools.pair_trace            # both lists, and their lengths

It traces the first fit of a run on texts, and the first round of runs on a table, in this process. A file counts if one
of its functions is given, or returns, the pair or the answer: texts, tokens, or numbers that were computed from them.
Files that are entered on the way with settings, names or weights alone only configure; they are listed apart. What the
journal and the artifact store write and read does not count, nor what the world computes to be a source.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import PhaseChanged, run_recipe
from pddpo_ray.records import (
    CostEstimate,
    LabelledPair,
    MeasuredValues,
    Measurement,
    Pair,
    PairRow,
    Response,
    SafetyLabels,
)
from pddpo_ray.theory.estimates.cost_estimate import CostEstimates, MeasuredAnswer
from pddpo_ray.training.batches import TextBatch
from pddpo_ray.training.passes.log_probs import Support

ROOT = Path(__file__).parents[1]
PRODUCT = ("pddpo_ray", "actors", "deploy")
METHOD = "pddpo_ray/algorithms/o_pd_dpo.py"
LOSS = ("pddpo_ray/theory/losses/objectives.py", "preference_loss")
BESIDE = ("pddpo_ray/storage/", "pddpo_ray/journal/")
CARRIERS = (
    LabelledPair, Pair, PairRow, Response, TextBatch, Support, torch.Tensor, np.ndarray,
    SafetyLabels, Measurement, MeasuredValues, MeasuredAnswer, CostEstimate, CostEstimates,
)  # fmt: skip
SAMPLING, STEP = "pddpo_ray/parts/sampling.py", ("pddpo_ray/parts/dual_step.py", "ascend_all")
DRAWN = "sample"
"""The phase in which a round's answers are drawn."""
BESIDE_AN_ANSWER = (*BESIDE, "pddpo_ray/records.py", "pddpo_ray/worlds/")
TABLES = ("tabular", "tabular-limits")
"""Recipes whose limits are labelled by feedback, and measured by sources."""
DEPTH = 4
"""How far into a value it is looked for what belongs to a pair."""


class ReachedError(BaseException):
    """The pair's loss has been computed: nothing else of the run is wanted."""


def small_run() -> Config:
    fits = ["trainer.fit.steps=1"]
    rollout = "rollout={engine: transformers, max_tokens: 40, candidates: 4}"
    sizes = ["rounds=1", "offline.pairs=24", "offline.compare_rounds=0", "explore.calibration=120", "explore.rank=16"]
    return load("text-world", ["cluster={mode: in-process}", rollout, *sizes, *fits])


class Trace:
    """Files entered since `begin`, and those of them that held a pair."""

    def __init__(self, first: str = METHOD, end: tuple[str, str] = LOSS, beside: tuple[str, ...] = BESIDE) -> None:
        self.entered: dict[str, None] = {}
        self.held: dict[str, None] = {}
        self._first, self._end, self._beside = first, end, beside

    def begin(self, event: object) -> None:
        """A listener of the run: the first round begins with the method's first fit."""
        if isinstance(event, PhaseChanged) and event.event.what == "round-started":
            self._start()

    def after_the_draw(self, event: object) -> None:
        """The same: the round's answers are there, and the part that drew them hands them on."""
        if isinstance(event, PhaseChanged) and (event.event.what, event.event.phase) == ("phase-finished", DRAWN):
            self._start()

    def _start(self) -> None:
        # The first file's own frame was entered before; it hands on what is followed.
        self.held[self._first] = self.entered[self._first] = None
        sys.setprofile(self._see)

    def _see(self, frame: FrameType, what: str, value: Any) -> None:
        file = frame.f_code.co_filename
        if what not in ("call", "return") or not file.startswith(str(ROOT)):
            return
        name = Path(file).relative_to(ROOT).as_posix()
        if not name.startswith(PRODUCT) or name.startswith(self._beside):
            return
        self.entered[name] = None
        if carries(value) if what == "return" else any(carries(argument) for argument in _arguments(frame)):
            self.held[name] = None
        if what == "return" and (name, frame.f_code.co_name) == self._end:
            raise ReachedError


def carries(value: object, depth: int = DEPTH) -> bool:
    """Whether a value holds answers, tokens or numbers of a pair."""
    if isinstance(value, CARRIERS):
        return not isinstance(value, torch.nn.Parameter)
    if depth == 0 or value is None or isinstance(value, str | bytes | int | float | type):
        return False
    if isinstance(value, Mapping):
        first = next(iter(value.items()), None)
        # by name: weights of a model
        return first is not None and not isinstance(first[0], str) and any(carries(part, depth - 1) for part in first)
    if isinstance(value, list | tuple):
        if len(value) > 2 and all(type(part) is int for part in value[:8]):
            return True
        return any(carries(part, depth - 1) for part in value[:3])
    if dataclasses.is_dataclass(value):
        return any(carries(getattr(value, field.name, None), depth - 1) for field in dataclasses.fields(value))
    return False


def _arguments(frame: FrameType) -> list[object]:
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [frame.f_locals.get(name) for name in names if name != "self"]


def way(folder: Path) -> Trace:
    trace = Trace()
    try:
        run_recipe(small_run(), folder, progress=trace.begin)
    except ReachedError:
        return trace
    finally:
        sys.setprofile(None)
    raise RuntimeError("the run ended without a loss of a pair")


def way_of_an_answer(recipe: str, folder: Path) -> Trace:
    """From the part that samples to the step of the multipliers, in a round of PD-DPO on a table."""
    trace = Trace(SAMPLING, STEP, BESIDE_AN_ANSWER)
    sizes = ["algorithm=pd-dpo", "rounds=1", "feedback.responses=24", "offline.pairs=60", "trainer.fit.steps=1"]
    try:
        run_recipe(load(recipe, ["cluster={mode: in-process}", *sizes]), folder, progress=trace.after_the_draw)
    except ReachedError:
        return trace
    finally:
        sys.setprofile(None)
    raise RuntimeError("the run ended without a step of the multipliers")


def main() -> None:
    ways: dict[str, Callable[[Path], Trace]] = {"a pair to its loss": way}
    ways |= {f"an answer to the multiplier, {recipe}": partial(way_of_an_answer, recipe) for recipe in TABLES}
    for title, traced in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            trace = traced(Path(folder) / "run")
        print(f"{title}: {len(trace.held)} files", *trace.held, sep="\n    ")
        print("entered with settings, names or weights alone:")
        print(*(f"    {name}" for name in trace.entered if name not in trace.held), sep="\n")


if __name__ == "__main__":
    main()
