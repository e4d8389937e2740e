"""What a run spent, counted the same way for every method, and the peak of its memory."""

from __future__ import annotations

import contextlib
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from pddpo_ray.journal import JournalReader
from pddpo_ray.records import Verdict

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Budget:
    """Everything that costs people or machines something."""

    pairs: int
    """Pairs that were compared; each has up to two labels."""
    labels: int
    """Labels of pairs and answers, without those that were withheld."""
    tokens: int
    """Tokens that were generated, for whatever purpose."""
    fits: int
    """Versions that an optimiser made, by a fit or by an update of PPO."""
    optimiser_steps: int
    """0 in a table, whose fits are exact."""
    fit_seconds: float
    """Seconds of one device in fits; of a fit that another run of the suite had made, the seconds it took there."""
    sampling_seconds: float
    """Seconds of the engine; draws from the reference that another run had made count as nothing."""


def budget_of(journal: JournalReader) -> Budget:
    """The budget of a finished run, from its journal."""
    metrics = journal.metrics()

    def of_purposes(ending: str) -> float:
        return sum(
            value
            for values in metrics.values()
            for name, value in values.items()
            if name.startswith("rollout/") and name.endswith(ending) and name != "rollout/sync_seconds"
        )

    pairs = journal.pairs()
    verdicts = [verdict for entry in pairs for verdict in (entry.labelled.helpful, entry.labelled.harmful)]
    decided = sum(verdict in (Verdict.FIRST, Verdict.SECOND) for verdict in verdicts)
    made = [
        (entry.metrics, kind)
        for entry in journal.versions()
        for kind in ("fit", "ppo")
        if entry.stage != "reference" and f"{kind}/seconds" in entry.metrics
    ]
    return Budget(
        pairs=len(pairs),
        labels=decided + int(sum(values.get("labels/safety", 0.0) for values in metrics.values())),
        tokens=int(of_purposes("_tokens")),
        fits=len(made),
        optimiser_steps=int(sum(measured.get(f"{kind}/steps", 0.0) for measured, kind in made)),
        fit_seconds=sum(measured[f"{kind}/seconds"] for measured, kind in made),
        sampling_seconds=of_purposes("_seconds"),
    )


class MemoryPeak:
    """Largest resident memory of this process between `begin` and `end`, above what it held at `begin`, in MiB.

    Linux can forget its high-water mark; elsewhere the mark of the whole process is all there is, and a run after a
    larger one reports 0.
    """

    def begin(self) -> None:
        with contextlib.suppress(OSError):
            CLEAR.write_text("5")
        self._rest = _resident("VmRSS")

    def end(self) -> float:
        return max(0.0, _resident("VmHWM") - self._rest)


def _resident(name: str) -> float:
    """MiB of this process: VmRSS now, VmHWM at most."""
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return float(line.split()[1]) / 1024
    unit = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
