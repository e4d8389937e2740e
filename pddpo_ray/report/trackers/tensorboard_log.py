"""TensorBoard files in the run folder, written without TensorFlow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel
from tensorboard.compat.proto.event_pb2 import Event as Record
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from pddpo_ray.report.trackers.opening import RoundLog, TrackedRun

TENSORBOARD = "tensorboard"
"""Folder of the files inside a run folder."""


def tensorboard_log(settings: BaseModel | None, run: TrackedRun) -> RoundLog:
    """The tracker `tensorboard`."""
    return TensorBoardLog(run.folder / TENSORBOARD)


class TensorBoardLog:
    """Writes scalars into a folder; every round is on disk when `write_round` returns."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._file: BinaryIO | None = None
        """Opened with the first round: a run that is refused leaves nothing behind."""

    def _open(self) -> BinaryIO:
        self._folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard looks for `tfevents` in the name and orders files by the number behind it
        count = len(list(self._folder.glob("events.out.tfevents.*.pddpo")))
        file = (self._folder / f"events.out.tfevents.{int(self._clock()):010d}.{count}.pddpo").open("xb")
        _write(file, Record(wall_time=self._clock(), file_version="brain.Event:2"))
        return file

    def write_round(self, round_: int, metrics: Mapping[str, float]) -> None:
        """Writes all finite metrics of a round."""
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in sorted(metrics.items())
            if math.isfinite(value)
        ]
        if self._file is None:
            self._file = self._open()
        _write(self._file, Record(wall_time=self._clock(), step=round_, summary=Summary(value=values)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _write(file: BinaryIO, event: Record) -> None:
    RecordWriter(file).write(event.SerializeToString())
    file.flush()
