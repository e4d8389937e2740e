"""Rules for all tests: what those of `make check` may do, which may warn, which skips continuous integration does not
accept, and what a crash means."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest

hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")
"""Processors that are shared take their time: `CHECK_SECONDS` bounds a test."""

THIRD_PARTY = ("ray", "vllm", "deepspeed", "browser", "postgres", "chaos", "gpu", "real")
"""Markers of tests that start other people's programs, whose warnings are not ours to repair."""

INSTALLED_IN_CI = ("ray", "vllm", "deepspeed", "browser", "postgres")
"""Markers of tests whose needs `.ci/run` installs: with CI=true such a skip is a failure."""


LATER = ("run", "slow", "full", *THIRD_PARTY)
"""Markers of tests that are not in `make check`."""

CHECK_SECONDS = 2.0
"""Processor time and sleep of a test without such a marker, on a processor that does LOOP in LOOP_SECONDS."""
LOOP, LOOP_SECONDS = 300_000, 0.011
"""Steps of a plain loop, and its time on an idle core of the machine on which the tiers were drawn."""
ROOM = 1.5
"""How much more it may compute where others crowd it out of the caches, which no loop in them shows."""

PROCESS_STARTS = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty")
"""Audit events of the interpreter."""

CRASHED = pytest.StashKey[set[str]]()
"""Tests whose process crashed."""


def starts_others(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in THIRD_PARTY)


def in_check(item: pytest.Item) -> bool:
    return not any(item.get_closest_marker(name) for name in LATER)


def slowness() -> float:
    """How many times as long as on the idle machine of the tiers a plain loop takes here and now; at least 1."""
    began, total = time.process_time(), 0
    for step in range(LOOP):
        total += step * step % 7
    return max(1.0, (time.process_time() - began) / LOOP_SECONDS)


class Work:
    """What the running test has done so far that a test of `make check` does not do."""

    def __init__(self) -> None:
        self.began = self.slept = 0.0
        self.done: set[str] = set()

    def begin(self) -> None:
        self.began, self.slept, self.done = self._processor_seconds(), 0.0, set()

    def seconds(self) -> float:
        """Processor time, as on the idle machine of the tiers, and sleep."""
        computed = self._processor_seconds() - self.began
        return self.slept + (computed if computed + self.slept <= CHECK_SECONDS else computed / ROOM / slowness())

    def watch(self) -> None:
        """Listens to the interpreter, and to the modules of runs and of optimisers where tests have imported them."""
        sys.addaudithook(self._hear)
        time.sleep = self._counting_sleep(time.sleep)  # type: ignore[assignment]
        if runs := sys.modules.get("pddpo_ray.driver.run"):
            runs.drive = self._noting("runs a recipe", runs.drive)  # type: ignore[attr-defined]
        if "torch" in sys.modules:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            register_optimizer_step_post_hook(lambda *_: self.done.add("fits a network"))

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in PROCESS_STARTS:
            self.done.add("starts a process")

    def _counting_sleep(self, sleep: Callable[[float], None]) -> Callable[[float], None]:
        def counted(seconds: float) -> None:
            if threading.current_thread() is threading.main_thread():  # a server of the test may sleep beside it
                self.slept += seconds
            sleep(seconds)

        return counted

    def _noting(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **named: Any) -> Any:
            self.done.add(what)
            return function(*arguments, **named)

        return noted

    @staticmethod
    def _processor_seconds() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime


WORK = Work()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if starts_others(item):
            item.add_marker(pytest.mark.filterwarnings("default"))
        if "finished_runs" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.run)


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.items:
        WORK.watch()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    WORK.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    """What other people's programs leave open is found under the rule for them, not during a later test of ours."""
    done = yield
    if starts_others(item) and (nextitem is None or not starts_others(nextitem)):
        gc.collect()
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    needed = [name for name in INSTALLED_IN_CI if item.get_closest_marker(name)]
    if report.skipped and needed and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"CI installs what {', '.join(needed)} tests need, but this one was skipped: {reason}"
    if report.passed and report.when == "call" and in_check(item):
        _hold_to_check(item, report)
    return report


def _hold_to_check(item: pytest.Item, report: pytest.TestReport) -> None:
    """Fails a test without a marker that does what only tests with one may do."""
    seconds, wrong = WORK.seconds(), sorted(WORK.done)
    if seconds > CHECK_SECONDS:
        wrong.append(f"takes {seconds:.1f} s of processor time and sleep, more than {CHECK_SECONDS:g}")
    if wrong:
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} {' and '.join(wrong)}: mark it `run`, `slow` or `full` (CONTRIBUTING.md, Tests)"
        )


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport, sched: Any) -> None:
    """Ray aborts the process that asks it where its own daemons do not answer in time: such a test is tried once more.

    That holds for `-n 1`, which runs the tests that start something. Those that run a file at a time may not crash, and
    a process that ended in any other way (a signal from outside, a test that ran too long) is a failure at once.
    """
    crashed = sched.config.stash.setdefault(CRASHED, set())
    aborted = report.node.gateway._io.popen.wait(timeout=60) == -signal.SIGABRT  # type: ignore[attr-defined]
    if not aborted or crashitem in crashed or sched.config.getoption("dist") != "load":
        return
    crashed.add(crashitem)
    report.outcome = "skipped"
    report.longrepr = (report.location[0], 0, f"Tried again, its process crashed: {crashitem}")
    sched.mark_test_pending(crashitem)


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Finished runs by recipe (tests/support/finished_runs.py); who reads one has the marker `run` by itself."""
    from tests.support.finished_runs import FinishedRuns

    return FinishedRuns(tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, told not to ask anyone anything by itself. Module scope: two drivers at a time exclude each other."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed (Debian package chromium)")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=20_000)  # five seconds are too few where other work runs beside it
    quiet = [f"--disable-{name}" for name in ("gpu", "quic", "background-networking", "component-update", "sync")]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--no-first-run", *quiet])
        yield started
        started.close()


@pytest.fixture
def read_only() -> Callable[[Path], AbstractContextManager[None]]:
    """Inside the context nothing in a folder can be written, by root neither: it is nobody meanwhile.

    What the test uses should be imported before, since nobody may not be able to read where Python is installed.
    """

    @contextmanager
    def context(folder: Path) -> Iterator[None]:
        user, root = os.geteuid(), Path(tempfile.gettempdir())
        modes = {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}
        for path, mode in modes.items():
            path.chmod(mode & 0o555 | (0o555 if path.is_dir() else 0o444))
        for above in folder.parents:
            if above.is_relative_to(root) and above != root:
                above.chmod(above.stat().st_mode | 0o011)
        if user == 0:
            os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(user)
            for path, mode in modes.items():
                path.chmod(mode)

    return context
