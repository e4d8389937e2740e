"""After a release: a share of what clients get is measured by the limits' own sources, and an alarm takes it back.

A coin that knows nothing of the answer chooses what is measured. Only answers of `released` that carry its certificate
count, decoded as it was tested: each has an expected measure of at most the limit while the release keeps it, whatever
came before. Texts are measured in memory and stored nowhere. An answer that the source cannot measure is left out, and
counted by itself. One that was broken off is not measured: it counts as the best value, so that a client who leaves
each stream that looks harmless raises no evidence.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deploy.serving.metrics import ServingMetrics
from pddpo_ray.certificates.testing import bounded, cannot
from pddpo_ray.config import Config
from pddpo_ray.journal.transactions import Store
from pddpo_ray.limits.quantities import Limit
from pddpo_ray.limits.sources import Answer, Source, Unmeasured
from pddpo_ray.scoring.sources.opening import source_in_run
from pddpo_ray.serving.alarms import Alarms, Watched
from pddpo_ray.theory.certificates.alarm import Alarm
from pddpo_ray.theory.certificates.measured_draws import scaled

logger = logging.getLogger("deploy.serving")

KEPT = 1000
"""Answers that wait to be measured; beyond them none is taken."""
WRITTEN_EVERY = 20
"""Measured answers after which a state is written; and whenever an alarm rings."""


@dataclass(frozen=True)
class WatchedLimit:
    """A limit whose measure has bounds, and its source."""

    limit: Limit
    source: Source
    low: float
    high: float

    @property
    def name(self) -> str:
        return self.limit.name

    @property
    def at_most(self) -> float:
        """The limit on the mean of what is measured, in [0, 1]."""
        return self.in_unit(self.limit.cost_limit)

    def in_unit(self, cost: float) -> float:
        return float(scaled(cost, self.low, self.high))

    def measured(self, answers: Sequence[Answer]) -> list[float | None]:
        """One number in [0, 1] per answer, higher is worse; None: no number."""
        values = self.source.values(answers)
        return [None if isinstance(value, Unmeasured) else self.in_unit(self.limit.cost(value)) for value in values]


def watched_limits(config: Config) -> tuple[list[WatchedLimit], list[str]]:
    """The limits that served answers can be measured for, and why the others cannot."""
    watched: list[WatchedLimit] = []
    reasons = []
    for entry in bounded(config):
        reason = cannot(entry) or _why_not(entry.limit)
        source = None if reason else source_in_run(entry, config.judge.options)
        if source is None:
            reasons.append(f"{entry.limit.name}: {reason or 'its source measures in a run alone'}")
            continue
        assert entry.limit.cost_range is not None
        watched.append(WatchedLimit(entry.limit, source, *entry.limit.cost_range))
    return watched, reasons


def _why_not(limit: Limit) -> str | None:
    if limit.quantity.over is not None:
        return f"it is about the prompts of {limit.quantity.over}, and nobody knows which served ones are of them"
    return None if limit.quantity.versus is None else "the reference gives no answer to served prompts"


class MeasuredTraffic:
    """One entrance's measurements. `rang` is called in a thread with what rang, once for each policy."""

    def __init__(
        self,
        store: Store,
        limits: Sequence[WatchedLimit],
        share: float,
        metrics: ServingMetrics,
        rang: Callable[[Watched, Alarm], None],
        coin: Callable[[], float] = random.random,
    ) -> None:
        self._alarms, self._limits, self._share = Alarms(store), tuple(limits), share
        self._metrics, self._on_alarm, self._coin = metrics, rang, coin
        self._waiting: asyncio.Queue[tuple[str, Answer | None, str]] = asyncio.Queue(KEPT)
        self._askers: dict[str, Counter[str]] = {}
        self._states: dict[Watched, Alarm] = {}
        self._alarmed_hashes: set[str] = set()

    @property
    def watches(self) -> bool:
        """Whether anything is measured at all."""
        return bool(self._limits) and self._share > 0

    def offer(self, sha256: str, answer: Answer | None, key: str = "") -> None:
        """Queues an answer of these weights to this key if the coin, tossed before it is read, says so. `answer`
        None: it was broken off."""
        if self._limits and sha256 and self._coin() < self._share and not self._waiting.full():
            self._waiting.put_nowait((sha256, answer, key))

    async def work(self) -> None:
        """Measures what waits, until cancelled."""
        while True:
            entry = await self._waiting.get()
            try:
                await asyncio.to_thread(self.measure, *entry)
            except Exception:
                logger.exception("a served answer was not measured")

    def most_of(self, sha256: str) -> tuple[str, int]:
        """The key that got most of the answers of these weights that were measured since the start, and how many."""
        return max(self._askers.get(sha256, Counter()).items(), key=lambda entry: entry[1], default=("", 0))

    def measure(self, sha256: str, answer: Answer | None, key: str = "") -> None:
        """One answer under all limits. Raises what a source raises for a mistake that a person must fix."""
        if sha256 in self._alarmed_hashes:
            return
        if answer is not None:
            self._askers.setdefault(sha256, Counter())[key] += 1
        for limit in self._limits:
            if answer is None:
                self._count(Watched(sha256, limit.name), limit, 0.0)
                continue
            (value,) = limit.measured([answer])
            self._metrics.measured(limit.name, value, limit.at_most)
            if value is not None:
                self._count(Watched(sha256, limit.name), limit, value)

    def _count(self, watched: Watched, limit: WatchedLimit, value: float) -> None:
        bound, level = limit.at_most, 1.0 - limit.limit.confidence
        before = self._states.get(watched) or self._alarms.read(watched, bound, level)
        alarm = before.after(value)
        self._states[watched] = alarm
        if alarm.rings or alarm.answers % WRITTEN_EVERY == 0:
            self._alarms.write(watched, alarm)
        if alarm.rings and watched.sha256 not in self._alarmed_hashes:
            self._alarmed_hashes.add(watched.sha256)
            self._alarms.rang(watched, alarm)
            self._on_alarm(watched, alarm)
