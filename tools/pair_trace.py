"""How many files a preference pair passes from the method's module to the arithmetic of its loss, and a sampled answer
from the method's module to the step of the multiplier.

    python -m tools.pair_trace            # both lists, and their lengths

It traces the first round of a run on texts in this process: a pair in its first fit; an answer while it is sampled,
measured and estimated from. A file counts if one of its functions is given, or returns, the pair or the answer: texts,
tokens, or numbers that were computed from them. Files that are entered on the way with
settings, names or weights alone only configure; they are listed apart. What the artifact store writes and reads
(weights; columns kept for later) lies beside the way.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import PhaseChanged, run_recipe
from pddpo_ray.records import CostEstimate, LabelledPair, MeasuredCosts, Pair, PairRow, Response, SafetyLabels
from pddpo_ray.training.batches import TextBatch
from pddpo_ray.training.passes.log_probs import Support

ROOT = Path(__file__).parents[1]
PRODUCT = ("pddpo_ray", "actors", "deploy")
METHOD = "pddpo_ray/algorithms/o_pd_dpo.py"
LOSS = ("pddpo_ray/theory/losses/objectives.py", "preference_loss")
BESIDE = ("pddpo_ray/storage/", "pddpo_ray/journal/")
MULTIPLIER = ("pddpo_ray/parts/dual_step.py", "step")
SAMPLING, MEASURING = "sample", ("pddpo_ray/parts/limits.py", "step")
"""What a sampled answer passes: the phase in which it is drawn, and the part that measures it."""
CARRIERS = (LabelledPair, Pair, PairRow, Response, TextBatch, Support, torch.Tensor, np.ndarray)
CARRIERS += (SafetyLabels, MeasuredCosts, CostEstimate)
DEPTH = 4
"""How far into a value it is looked for what belongs to a pair."""


class ReachedError(BaseException):
    """The end of the way: nothing else of the run is wanted."""


def small_run() -> Config:
    fits = ["trainer.fit.steps=1"]
    rollout = "rollout={engine: transformers, max_tokens: 40, candidates: 4}"
    sizes = ["rounds=1", "offline.pairs=24", "offline.compare_rounds=0", "explore.calibration=120", "explore.rank=16"]
    return load("text-world", ["cluster={mode: in-process}", rollout, *sizes, *fits])


class Trace:
    """Files entered since `begin`, and those of them that held a pair."""

    end = LOSS

    def __init__(self) -> None:
        self.entered: dict[str, None] = {}
        self.held: dict[str, None] = {}

    def begin(self, event: object) -> None:
        """A listener of the run: the first round begins with the method's first fit."""
        if isinstance(event, PhaseChanged) and event.event.what == "round-started":
            # The method's own frame was entered before; it hands the pairs to its trainer.
            self.held[METHOD] = self.entered[METHOD] = None
            sys.setprofile(self._see)

    def _see(self, frame: FrameType, what: str, value: Any) -> None:
        file = frame.f_code.co_filename
        if what not in ("call", "return") or not file.startswith(str(ROOT)):
            return
        name = Path(file).relative_to(ROOT).as_posix()
        if not name.startswith(PRODUCT) or name.startswith(BESIDE):
            return
        self.entered[name] = None
        if carries(value) if what == "return" else any(carries(argument) for argument in _arguments(frame)):
            self.held[name] = None
        if what == "return" and (name, frame.f_code.co_name) == self.end:
            raise ReachedError


class AnswerTrace(Trace):
    """The same of a sampled answer."""

    end = MULTIPLIER

    def __init__(self) -> None:
        super().__init__()
        self._on = False

    def begin(self, event: object) -> None:
        """On while answers are sampled; what measures them is seen by its call."""
        if isinstance(event, PhaseChanged) and event.event.phase == SAMPLING:
            self.held[METHOD] = self.entered[METHOD] = None
            self._on = event.event.what == "phase-started"
            sys.setprofile(self._see)

    def _see(self, frame: FrameType, what: str, value: Any) -> None:
        code = frame.f_code
        if what == "call" and code.co_name == MEASURING[1] and code.co_filename.endswith(MEASURING[0]):
            self._on = True
        if self._on:
            super()._see(frame, what, value)


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


def way(folder: Path, trace: Trace) -> Trace:
    """The trace of a run to the trace's end."""
    try:
        run_recipe(small_run(), folder, progress=trace.begin)
    except ReachedError:
        return trace
    finally:
        sys.setprofile(None)
    raise RuntimeError("the run ended before the end of the way")


def main() -> None:
    for what, trace in (("a pair", Trace()), ("a sampled answer", AnswerTrace())):
        with tempfile.TemporaryDirectory() as folder:
            way(Path(folder) / "run", trace)
        print(f"{what}: {len(trace.held)} files")
        print("\n".join(f"    {name}" for name in trace.held))
        print("entered with settings, names or weights alone:")
        print("\n".join(f"    {name}" for name in trace.entered if name not in trace.held))


if __name__ == "__main__":
    main()
