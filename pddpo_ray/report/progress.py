"""Live progress of a run, fed by the run's events.

    with make_progress() as progress:
        run_recipe(config, run_dir, progress=progress)

On a terminal this is a panel that redraws itself, with one permanent line per finished round above it. Elsewhere (a log
file, a Ray job) it is only that line. All numbers come with the events, out of the journal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pddpo_ray.journal import JournalEvent
from pddpo_ray.loop.result import WALL
from pddpo_ray.loop.run import Event, PhaseChanged, RoundFinished, RunFinished, RunStarted
from pddpo_ray.report.readable import seconds
from pddpo_ray.report.round_line import RoundLine


@dataclass
class State:
    """Where one run is, as far as events told."""

    total: int | None = None
    done: int = 0
    """Newest finished round."""
    round: int = 0
    phase: str = ""
    phase_since: float = 0.0
    finished_phases: list[tuple[str, float]] = field(default_factory=list)
    """Phases of the current round with their seconds."""
    values: dict[str, float] = field(default_factory=dict)
    """Newest value of every metric."""
    durations: list[float] = field(default_factory=list)
    """Seconds of the rounds that this process finished."""

    def advance(self, event: JournalEvent, now: float) -> None:
        """Takes in one event of the journal."""
        self.round = event.round
        if event.what == "round-started":
            self.done = max(self.done, event.round - 1)
            self.finished_phases = []
        elif event.what == "phase-started":
            self.phase, self.phase_since = event.phase, now
        elif event.what in ("phase-finished", "phase-reused"):
            self.finished_phases.append((event.phase, event.seconds))
            self.phase = ""

    def close_round(self, number: int, total: int, metrics: Mapping[str, float]) -> None:
        """Takes in a finished round."""
        self.total, self.done = total, number
        self.values |= metrics
        if WALL in metrics:
            self.durations.append(metrics[WALL])

    @property
    def seconds_left(self) -> float | None:
        """Rounds left times the middle duration of the last five; None before one is finished.

        The first round holds longer fits, so it does not count once there are others.
        """
        if not self.durations or self.total is None:
            return None
        recent = sorted(self.durations[1:][-5:] or self.durations)
        return (self.total - self.done) * recent[len(recent) // 2]


class Progress:
    """Listens to a run and says what happens; this one writes a line per round."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self.states: dict[str, State] = {}
        """By run: an online run on a known world has an offline comparison beside it."""
        self.run = ""
        """The run that the newest event is about."""
        self.since = clock()
        self._say = say
        self._clock = clock

    def __call__(self, event: Event) -> None:
        """The `progress` of `run_recipe`."""
        self.run = event.run
        state = self.states.setdefault(event.run, State())
        if isinstance(event, RunStarted):
            state.total, state.done = event.total, event.total - event.rounds
            self._say(f"{event.run}: {event.algorithm}, {event.rounds} of {event.total} rounds to do")
        elif isinstance(event, PhaseChanged):
            state.advance(event.event, self._clock())
        elif isinstance(event, RoundFinished):
            state.close_round(event.round, event.total, event.metrics)
            self._say(f"{event.run} {RoundLine(event.round, event.total, event.metrics, event.metrics.get(WALL))}")
            if event.message:
                self._say(f"{event.run}: {event.message}")
        elif isinstance(event, RunFinished):
            self._say(f"{event.run}: finished in {seconds(event.result['seconds'])}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class LiveProgress(Progress):
    """The same with a panel that redraws itself while the run goes on."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        super().__init__(lambda line: console.print(line, highlight=False), clock)
        self._live = Live(get_renderable=self.render, console=console, refresh_per_second=4, transient=True)

    def render(self) -> RenderableType:
        """The panel: a bar of rounds, the phase, the newest numbers, the time left."""
        state, now = self.states.get(self.run, State()), self._clock()
        total = state.total
        where = f"round {state.round}{f'/{total}' if total else ''}" if state.round else "before round 1"
        left = [] if state.seconds_left is None else [f"{seconds(state.seconds_left)} left"]
        grid = Table.grid(padding=(0, 2))
        grid.add_row(
            Text(self.run or "starting", style="bold"),
            ProgressBar(total=max(total or 1, 1), completed=state.done, width=24),
            Text(" · ".join([where, f"{seconds(now - self.since)} so far", *left])),
        )
        done = " · ".join(f"{name} {seconds(took)}" for name, took in state.finished_phases[-3:])
        phase = f"{state.phase} {seconds(now - state.phase_since)} …" if state.phase else ""
        lines: list[RenderableType] = [grid, Text("  " + "  ".join(filter(None, [done, phase])), style="dim")]
        numbers = str(RoundLine(state.done, total or state.done, state.values)).partition(" · ")[2]
        if numbers:
            lines.append(Text(f"  {numbers}"))
        return Group(*lines)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def make_progress(console: Console | None = None, *, clock: Callable[[], float] = time.monotonic) -> Progress:
    """A live panel where the console is a terminal, else plain lines.

    The console is stderr unless one is given, so that `--json` keeps stdout to itself.
    """
    console = console or Console(stderr=True)
    if console.is_terminal:
        return LiveProgress(console, clock)
    return Progress(lambda line: console.print(line, highlight=False, soft_wrap=True), clock)
