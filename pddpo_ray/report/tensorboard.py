"""TensorBoard files of a run: every metric of every round as a scalar, the round as the step.

Written with TensorBoard's own record format and messages; `torch.utils.tensorboard` would import torch, and
TensorBoard's file writer starts a thread of its own. A run that is resumed gets a further file, which TensorBoard reads
together with the first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from tensorboard.compat.proto.event_pb2 import Event as Record
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from pddpo_ray.loop.run import Event, RoundFinished


class TensorBoardLog:
    """Writes scalars into a folder; every round is on disk when `write_round` returns."""

    def __init__(self, folder: Path, run: str, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._run = run
        self._clock = clock
        self._file: BinaryIO | None = None
        """Opened with the first round: a run that is refused leaves nothing behind."""

    def _open(self) -> BinaryIO:
        self._folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard looks for `tfevents` in the name and orders files by the number behind it
        taken = len(list(self._folder.glob("events.out.tfevents.*.pddpo")))
        file = (self._folder / f"events.out.tfevents.{int(self._clock()):010d}.{taken}.pddpo").open("xb")
        _write(file, Record(wall_time=self._clock(), file_version="brain.Event:2"))
        return file

    def write_round(self, round_: int, metrics: Mapping[str, float]) -> None:
        """All finite metrics of a round; the others have no place on a curve."""
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in sorted(metrics.items())
            if math.isfinite(value)
        ]
        if self._file is None:
            self._file = self._open()
        _write(self._file, Record(wall_time=self._clock(), step=round_, summary=Summary(value=values)))

    def __call__(self, event: Event) -> None:
        """A `progress` of `run_recipe`: writes the rounds of the run itself, not of its offline comparison."""
        if isinstance(event, RoundFinished) and event.run == self._run:
            self.write_round(event.round, event.metrics)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _write(file: BinaryIO, event: Record) -> None:
    RecordWriter(file).write(event.SerializeToString())
    file.flush()
