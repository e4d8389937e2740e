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
from typing import Self

from tensorboard.compat.proto.event_pb2 import Event as Record
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from pddpo_ray.loop.run import Event, RoundFinished


class TensorBoardLog:
    """Writes scalars into a folder; every round is on disk when `write_round` returns."""

    def __init__(self, folder: Path, run: str, clock: Callable[[], float] = time.time) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._run = run
        self._clock = clock
        # TensorBoard looks for `tfevents` in the name and orders files by the number behind it
        taken = len(list(folder.glob("events.out.tfevents.*.pddpo")))
        self._file = (folder / f"events.out.tfevents.{int(clock()):010d}.{taken}.pddpo").open("xb")
        self._records = RecordWriter(self._file)
        self._write(Record(wall_time=clock(), file_version="brain.Event:2"))

    def write_round(self, round_: int, metrics: Mapping[str, float]) -> None:
        """All finite metrics of a round; the others have no place on a curve."""
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in sorted(metrics.items())
            if math.isfinite(value)
        ]
        self._write(Record(wall_time=self._clock(), step=round_, summary=Summary(value=values)))

    def __call__(self, event: Event) -> None:
        """A `progress` of `run_recipe`: writes the rounds of the run itself, not of its offline comparison."""
        if isinstance(event, RoundFinished) and event.run == self._run:
            self.write_round(event.round, event.metrics)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, event: Record) -> None:
        self._records.write(event.SerializeToString())
        self._file.flush()
