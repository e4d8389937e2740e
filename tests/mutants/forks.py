"""Tests in forked children of one process that has imported everything.

    parent:  imports torch, collects the tests, runs none of them
    child:   changes a function, runs the tests that it was given, says which one failed, ends

The parent runs no test because torch refuses a backward pass in the child of a process that has done one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FAST = "not (ray or vllm or deepspeed or browser or postgres or gpu or chaos or full or real)"
DIED = "(the process died or ran out of time)"
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
"""A pool of threads does not survive a fork; the process that forks must have been started with these."""


@dataclass
class Outcome:
    """What a child did: the first test that failed (None: all passed) and the processor seconds of each."""

    red: str | None = None
    passed: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    reach: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """test -> file -> lines, where reach was asked for."""


class Forks:
    """A pytest plugin that, once the tests are collected, hands itself to `work` in place of running them."""

    def __init__(self, work: Callable[[Forks], None]) -> None:
        self._work = work
        self.error: Exception | None = None
        self._outcome = Outcome()
        self.tests: dict[str, pytest.Item] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        self.tests = {item.nodeid: item for item in session.items}
        try:
            self._work(self)
        except Exception as error:  # pytest would make an internal error of it
            self.error = error
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._outcome.red = self._outcome.red or report.nodeid
        elif report.when == "call" and report.passed:
            self._outcome.passed.append(report.nodeid)

    def named(self, name: str) -> list[str]:
        """Tests with this node id, with or without its parameters, or whose function has this name."""
        return [test for test in self.tests if name in (test, test.split("[")[0], test.split("::")[-1].split("[")[0])]

    def run(
        self,
        tests: Sequence[str],
        before: Callable[[], Any] = lambda: None,
        *,
        reach_of: Sequence[str] = (),
        cpu_s: int = 300,
    ) -> Outcome:
        """Runs tests in a child after `before`, up to the first failure. `reach_of`: files whose lines are noted."""
        gc.freeze()  # a collection in the child would copy every page of what it shares with its parent
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                os.close(read)
                resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
                signal.alarm(20 * cpu_s)
                self._in_child(tests, before, reach_of)
                with os.fdopen(write, "w") as pipe:
                    json.dump(vars(self._outcome), pipe)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        return Outcome(**json.loads(answer)) if answer else Outcome(red=DIED)

    def warm(self, outcome: Outcome) -> None:
        """Imports here what a child had to import, so that the next children need not."""
        for name in outcome.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)

    def _in_child(self, tests: Sequence[str], before: Callable[[], Any], reach_of: Sequence[str]) -> None:
        loaded = set(sys.modules)
        before()
        items = [self.tests[test] for test in tests]
        with _reach(reach_of, self._outcome.reach) as switch:
            for item, following in zip(items, [*items[1:], None], strict=True):
                began = time.process_time()
                switch(item.nodeid)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                self._outcome.seconds[item.nodeid] = time.process_time() - began
                if self._outcome.red:
                    break
        self._outcome.modules = sorted(set(sys.modules) - loaded)


@contextlib.contextmanager
def _reach(files: Sequence[str], reached: dict[str, dict[str, list[int]]]) -> Iterator[Callable[[str], None]]:
    """Notes which lines of the files each test executes, by coverage.py's contexts."""
    if not files:
        yield lambda test: None
        return
    from coverage import Coverage

    trace = Coverage(data_file=None, include=list(files), config_file=False)
    trace.set_option("run:disable_warnings", ["no-data-collected"])
    trace.start()
    yield trace.switch_context
    trace.stop()
    data = trace.get_data()
    for file in data.measured_files():
        for line, tests in data.contexts_by_lineno(file).items():
            for test in tests:
                if test:
                    reached.setdefault(test, {}).setdefault(file, []).append(line)


def with_tests(paths: Sequence[str], work: Callable[[Forks], None]) -> None:
    """Collects the fast tests of these files and folders and calls `work`. Raises RuntimeError where that fails."""
    plugin = Forks(work)
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", FAST, *paths]
    code = pytest.main(arguments, plugins=[plugin])
    if plugin.error is not None:
        raise plugin.error
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) or not plugin.tests:
        raise RuntimeError(f"pytest could not collect {', '.join(paths)} (exit code {int(code)})")


def files_of(*patterns: str, root: Path) -> list[str]:
    """Files that match, relative to the root, sorted."""
    return sorted({str(path.relative_to(root)) for pattern in patterns for path in root.glob(pattern)})
