"""Watchers of a run in progress, fed by its events: progress on the screen, and trackers.

On a terminal the progress is a panel that redraws itself, with one permanent line per finished round above it.
Elsewhere (a log file, a Ray job) it is that line, one for each piece of work before round 1 as it begins, and one for
each later piece that took long. All numbers come with the events, out of the journal.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pddpo_ray.driver.result import WALL
from pddpo_ray.driver.run import Event, PhaseChanged, RoundFinished, RunFinished, RunStarted
from pddpo_ray.driver.run import Progress as Listener
from pddpo_ray.journal import JournalEvent
from pddpo_ray.report.text import seconds, short
from pddpo_ray.report.trackers.opening import TrackedRun, opened
from pddpo_ray.scorecard.words import brief

START_UP = "model, engine and sources start"
LONG_S = 10.0
"""Seconds after which a log says that a phase of a round is done."""
BEFORE: Mapping[str, str] = {
    "reference": "the reference is recorded",
    "publish": "the reference goes to the engine and is checked there",
    "limit-sources": "who measures the limits is recorded",
    "pool-baseline": "the reference answers, to be compared with",
    "pool-proposal": "the reference answers, as proposals",
    "pool-calibration": "the reference answers, to whiten the features",
    "pool-scorers": "the reference answers, for the scorers to learn from",
    "pool-reference": "the reference answers, for limits versus the reference",
    "pool": "the reference answers",
    "score-models": "reward and cost model are trained",
    "method-models": "the method's reward and cost model are trained",
    "scorers": "scores are fitted",
    "offline": "offline pairs are read or labelled",
    "rows-left-out": "rows that are too long are counted",
    "scorer-gate": "reward and cost model are compared with labels",
    "scorer-gate-limits": "score models of limits are checked",
    "machine-measure-offline": "machines measure the offline answers, before people do",
    "measure-offline": "the offline answers are measured for the limits",
    "measure": "answers are measured",
    "cut-answers": "answers that ran into the token limit are counted",
    "reachable": "what is reachable under the limits is computed",
    "whitening": "features are whitened",
    "preferences": "pairs are stored",
    "fit": "a policy is fitted",
}
"""What phases before round 1 do, by the beginning of their names; the longest that fits is used."""


def said_of(phase: str) -> str:
    """A phase before round 1 in words."""
    names = [name for name in BEFORE if phase == name or phase.startswith(f"{name}-")]
    return BEFORE[max(names, key=len)] if names else phase


@dataclass
class State:
    """Where one run is, by its events so far."""

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
    limits: tuple[str, ...] = ()
    """What the newest round says about every limit."""
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

    def close_round(self, number: int, total: int, metrics: Mapping[str, float], limits: Sequence[str] = ()) -> None:
        """Takes in a finished round."""
        self.total, self.done, self.limits = total, number, tuple(limits)
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

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
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
            state.phase, state.phase_since = START_UP, self._clock()
            self._say(f"{event.run}: {event.algorithm}, {event.rounds} of {event.total} rounds to do; {START_UP}")
        elif isinstance(event, PhaseChanged):
            state.advance(event.event, self._clock())
            self._phase(event.run, event.event)
        elif isinstance(event, RoundFinished):
            state.close_round(event.round, event.total, event.metrics, event.limits)
            took = event.metrics.get(WALL)
            self._say(f"{event.run} {RoundLine(event.round, event.total, event.metrics, took, event.limits)}")
            for line in filter(None, [event.message, *event.notes]):
                self._say(f"{event.run}: {line}")
        elif isinstance(event, RunFinished):
            self._say(f"{event.run}: finished in {seconds(event.result['seconds'])}")

    def _phase(self, run: str, event: JournalEvent) -> None:
        """A line where a log would be silent for long."""
        if event.what == "phase-started" and event.round == 0:
            self._say(f"{run} before round 1: {said_of(event.phase)}")
        elif event.what == "phase-finished" and event.round > 0 and event.seconds >= LONG_S:
            self._say(f"{run} round {event.round}: {event.phase} took {seconds(event.seconds)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class LiveProgress(Progress):
    """The same with a panel that redraws itself during the run."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        super().__init__(lambda line: console.print(line, highlight=False), clock)
        self._live = Live(get_renderable=self.render, console=console, refresh_per_second=4, transient=True)

    def _phase(self, run: str, event: JournalEvent) -> None:
        """The panel shows it."""

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
        words = said_of(state.phase) if state.round == 0 else state.phase
        phase = f"{words} {seconds(now - state.phase_since)} …" if state.phase else ""
        lines: list[RenderableType] = [grid, Text("  " + "  ".join(filter(None, [done, phase])), style="dim")]
        numbers = str(RoundLine(state.done, total or state.done, state.values, limits=state.limits)).partition(" · ")[2]
        if numbers:
            lines.append(Text(f"  {numbers}"))
        return Group(*lines)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def make_progress(console: Console | None = None, *, clock: Callable[[], float] = time.monotonic) -> Progress:
    """A live panel where the console is a terminal, else plain lines.

    The console is stderr unless one is given, so that `--json` keeps stdout to itself.
    """
    console = console or Console(stderr=True)
    if console.is_terminal:
        return LiveProgress(console, clock)
    return Progress(lambda line: console.print(line, highlight=False, soft_wrap=True), clock)


@dataclass(frozen=True)
class RoundLine:
    """One finished round as one line of a log; numbers that a run does not have are left out.

    round 7/16 · multiplier 0.831 → 0.795 · cost -0.041 ± 0.062 logit (at most 0 logit, unsafe rate 48 %)
    · gap 0.310 (helpfulness 0.420, violation −0.020) · off-grammar 0.004 · slope of reward 0.970, of cost 0.910
    · 3,120 tokens/s · 8.4 s      (on one line)

    ± is half of the estimate's 95 % interval. Under several limits each multiplier has its limit's name.
    """

    number: int
    total: int
    values: Mapping[str, float] = field(default_factory=dict)
    took: float | None = None
    limits: Sequence[str] = ()
    """Every limit's estimate in its own unit, its name first; metrics of all but the first have its name in front."""

    def __str__(self) -> str:
        parts = [
            f"round {self.number}/{self.total}",
            self._multipliers(),
            *self.limits,
            self._fill("gap {exact/gap_policy} (helpfulness {exact/f_policy}, violation {exact/g_policy})"),
            self._fill("off-grammar {exact/off_support}") if self.values.get("exact/off_support") else "",
            self._fill("slope of reward {fit/slope_reward}, of cost {fit/slope_cost}"),
            brief(self.values),
            self._fill("{rollout/tokens_per_second} tokens/s"),
            "" if self.took is None else seconds(self.took),
        ]
        return " · ".join(part for part in parts if part)

    def _multipliers(self) -> str:
        names = [text.partition(" ")[0] for text in self.limits]
        if len(names) < 2:
            return self._fill("multiplier {dual/multiplier}") + self._fill(" → {dual/next}")
        prefixes = ["", *(f"{name}/" for name in names[1:])]
        moves = [
            self._fill(f"{name} {{{prefix}dual/multiplier}}") + self._fill(f" → {{{prefix}dual/next}}")
            for name, prefix in zip(names, prefixes, strict=True)
        ]
        return "multipliers " + ", ".join(filter(None, moves)) if any(moves) else ""

    def _fill(self, text: str) -> str:
        """The text with its metrics' values; empty where one is missing."""
        names = re.findall(r"{(.+?)}", text)
        if not all(math.isfinite(self.values.get(name, math.nan)) for name in names):
            return ""
        return re.sub(r"{(.+?)}", lambda match: short(self.values[match[1]]), text)


@contextmanager
def watching(
    run_dir: Path,
    *,
    tensorboard: bool = True,
    console: Console | None = None,
    trackers: Mapping[str, Mapping[str, Any]] | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> Iterator[Listener]:
    """The `progress` to give to `run_recipe`; `trackers` are told the rounds too, by name with their settings.

    with watching(run_dir) as progress:
        run_recipe(config, run_dir, progress=progress)
    """
    configs: dict[str, Mapping[str, Any]] = {"tensorboard": {}} if tensorboard else {}
    configs |= trackers or {}
    run = TrackedRun(run_dir, run_dir.name, recipe or {})
    with ExitStack() as open_ones:
        watchers: list[Listener] = [open_ones.enter_context(make_progress(console))]
        watchers += [open_ones.enter_context(closing(opened(name, config, run))) for name, config in configs.items()]

        def tell(event: Event) -> None:
            for watcher in watchers:
                watcher(event)

        yield tell
