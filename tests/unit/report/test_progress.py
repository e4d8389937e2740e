"""What a person sees while a run goes on: lines, the panel, and TensorBoard files."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event as Record

from pddpo_ray.certificates.outcome import estimates_of
from pddpo_ray.config import load
from pddpo_ray.driver.run import PhaseChanged, RoundFinished, RunFinished, RunStarted, run_recipe
from pddpo_ray.journal import JournalEvent, read_journal
from pddpo_ray.report.progress import LiveProgress, Progress, RoundLine, State, make_progress, watching
from pddpo_ray.report.trackers.opening import Told
from pddpo_ray.report.trackers.tensorboard_log import TensorBoardLog

METRICS = {
    "dual/multiplier": 0.831,
    "dual/next": 0.795,
    "leaks/dual/multiplier": 0.0,
    "leaks/dual/next": 0.25,
    "cost/estimate": -0.041,
    "exact/f_policy": 0.42,
    "exact/g_policy": -0.0204,
    "exact/gap_policy": 0.31,
    "exact/off_support": 0.004,
    "fit/slope_reward": 0.97,
    "fit/slope_cost": 0.91,
    "rollout/tokens_per_second": 3120.4,
    "time/wall": 8.4,
}


LIMITS = ("harm -0.041 ± 0.062 logit (at most 0 logit, unsafe rate 49 %)", "leaks 43 ± 5 % (at most 50 %)")


def test_round_line_by_hand() -> None:
    assert str(RoundLine(7, 16, METRICS, 8.4, LIMITS)) == (
        "round 7/16 · multipliers harm 0.831 → 0.795, leaks 0 → 0.250 · "
        "harm -0.041 ± 0.062 logit (at most 0 logit, unsafe rate 49 %) · "
        "leaks 43 ± 5 % (at most 50 %) · gap 0.310 (helpfulness 0.420, "
        "violation −0.020) · off-grammar 0.004 · slope of reward 0.970, of cost 0.910 · 3,120 tokens/s · 8.4 s"
    )


def test_round_line_leaves_out_what_a_run_does_not_know() -> None:
    known = {name: METRICS[name] for name in ("dual/multiplier", "dual/next", "cost/estimate")}
    line = RoundLine(1, 4, {**known, "fit/slope_cost": float("nan")})
    assert str(line) == "round 1/4 · multiplier 0.831 → 0.795"
    assert str(RoundLine(1, 4)) == "round 1/4"
    assert str(RoundLine(1, 4, {"leaks/dual/multiplier": 2.0}, limits=LIMITS)) == " · ".join(
        ("round 1/4", "multipliers leaks 2", *LIMITS)
    )
    assert str(RoundLine(1, 4, limits=LIMITS)) == " · ".join(("round 1/4", *LIMITS))


def test_a_log_gets_one_line_per_round() -> None:
    out = io.StringIO()
    progress = make_progress(Console(file=out, width=40), clock=iter(map(float, range(99))).__next__)
    with progress:
        progress(RunStarted("demo", "o-pd-dpo", 2, 2))
        progress(PhaseChanged("demo", JournalEvent("phase-started", 0, "pool-baseline")))
        progress(PhaseChanged("demo", JournalEvent("phase-finished", 0, "pool-baseline", 40.0)))
        progress(PhaseChanged("demo", JournalEvent("phase-started", 0, "measure-offline")))
        progress(PhaseChanged("demo", JournalEvent("phase-started", 0, "another")))
        progress(PhaseChanged("demo", JournalEvent("phase-started", 1, "sample")))
        progress(PhaseChanged("demo", JournalEvent("phase-finished", 1, "sample", 9.9)))
        progress(PhaseChanged("demo", JournalEvent("phase-finished", 1, "fit-cost", 75.0)))
        progress(RoundFinished("demo", 1, 2, {"dual/multiplier": 1.0, "time/wall": 9.0}, "it stands still"))
        progress(RunFinished("demo", {"seconds": 12.0}))
    assert out.getvalue().splitlines() == [
        "demo: o-pd-dpo, 2 of 2 rounds to do; model, engine and sources start",
        "demo before round 1: the reference answers, to be compared with",
        "demo before round 1: the offline answers are measured for the limits",
        "demo before round 1: another",
        "demo round 1: fit-cost took 1 min 15 s",
        "demo round 1/2 · multiplier 1 · 9.0 s",
        "demo: it stands still",
        "demo: finished in 12.0 s",
    ]


def test_time_left_is_rounds_left_times_a_usual_round() -> None:
    """The first round (60 s) does not count; the middle of 8, 30, 10 is 10; 12 rounds are left."""
    state = State()
    assert state.seconds_left is None
    for number, took in enumerate((60.0, 8.0, 30.0, 10.0), 1):
        state.close_round(number, 16, {"time/wall": took})
    assert state.seconds_left == pytest.approx(12 * 10.0)


def test_panel_shows_round_phase_numbers_and_time_left() -> None:
    now = [0.0]
    console = Console(file=io.StringIO(), width=160, force_terminal=True, color_system=None)
    progress = make_progress(console, clock=lambda: now[0])
    assert isinstance(progress, LiveProgress)
    progress(RunStarted("demo", "o-pd-dpo", 16, 16))
    progress(RoundFinished("demo", 7, 16, METRICS, limits=LIMITS[:1]))
    progress(PhaseChanged("demo", JournalEvent("round-started", 8)))
    progress(PhaseChanged("demo", JournalEvent("phase-finished", 8, "fit-reward", 6.1)))
    progress(PhaseChanged("demo", JournalEvent("phase-started", 8, "fit-cost")))
    now[0] = 90.0
    with console.capture() as captured:
        console.print(progress.render())
    text = captured.get()
    for part in (
        "demo",
        "round 8/16",
        "1 min 30 s so far",
        "1 min 16 s left",
        "fit-reward 6.1 s",
        "fit-cost 1 min 30 s",
    ):
        assert part in text
    assert "multiplier 0.831 → 0.795 · harm -0.041 ± 0.062 logit (at most 0 logit, unsafe rate 49 %)" in text
    assert "3,120 tokens/s" in text


def test_rounds_of_the_offline_comparison_do_not_count_for_the_run() -> None:
    progress = Progress(lambda line: None, clock=lambda: 0.0)
    progress(RunStarted("demo", "o-pd-dpo", 16, 16))
    progress(RoundFinished("demo-offline", 4, 4, {"time/wall": 1.0}))
    assert (progress.states["demo"].done, progress.states["demo-offline"].done) == (0, 4)


def read_scalars(folder: Path) -> dict[tuple[int, str], float]:
    found: dict[tuple[int, str], float] = {}
    for path in sorted(folder.glob("*tfevents*")):
        for raw in RawEventFileLoader(str(path)).Load():
            record = Record.FromString(raw)
            found |= {(record.step, value.tag): value.simple_value for value in record.summary.value}
    return found


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    with closing(Told("tensorboard", TensorBoardLog(tmp_path, clock=lambda: 5.0), "demo")) as log:
        log(RoundFinished("demo", 1, 2, {"dual/multiplier": 0.5, "fit/slope_cost": float("nan")}))
        log(RoundFinished("demo-offline", 1, 2, {"dual/multiplier": 9.0}))
    with closing(Told("tensorboard", TensorBoardLog(tmp_path, clock=lambda: 5.0), "demo")) as log:
        log(RoundFinished("demo", 2, 2, {"dual/multiplier": 0.25}))
    assert len(list(tmp_path.iterdir())) == 2
    assert read_scalars(tmp_path) == {(1, "dual/multiplier"): 0.5, (2, "dual/multiplier"): 0.25}


@pytest.mark.run
def test_a_watched_run_is_told_and_logged_as_the_journal_has_it(tmp_path: Path) -> None:
    """The real loop on a small table: lines on the console and scalars equal the journal's metrics."""
    config = load("tabular", ["rounds=2", "feedback.responses=16", "limits.cost.labels_each=4", "offline.pairs=64"])
    out = io.StringIO()
    with watching(tmp_path / "run", console=Console(file=out)) as progress:
        run_recipe(config, tmp_path / "run", progress=progress)
    with read_journal(tmp_path / "run" / "journal.sqlite", "run") as journal:
        metrics = journal.metrics()
        limits = {
            number: [one.brief for one in estimates_of(journal, config.typed_limits, number)] for number in (1, 2)
        }
    scalars = read_scalars(tmp_path / "run" / "tensorboard")
    for number in (1, 2):
        values = metrics[number]
        assert f"run {RoundLine(number, 2, values, values['time/wall'], limits[number])}" in out.getvalue().splitlines()
        for name in ("dual/multiplier", "cost/estimate", "exact/f_policy", "exact/gap_mixture"):
            assert scalars[number, name] == pytest.approx(values[name], rel=1e-6)


@pytest.mark.run
def test_nothing_of_the_report_imports_torch() -> None:
    modules = "build, progress"
    code = f"from pddpo_ray.report import {modules}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
