"""How an endpoint stops: it refuses what is new, lets what is under way end, and only then is taken down.

with StopSignals() as signals:
    signals.wait()
    let_finish(entrance, signals, grace_s)

`python -m deploy.serving.stopping APPLICATION GRACE_S` does it to an application of the cluster at RAY_ADDRESS or of
this node: a head pod's preStop (deploy/helm), since Ray waits for nobody at SIGTERM.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

logger = logging.getLogger("deploy.serving")

ASKED_EVERY_S = 0.2
ANSWER_S = 10.0
LAST_BYTES_S = 1.0
"""Wait after the last answer has ended, whose last bytes the proxy still sends."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM inside the block raises SystemExit, with a shell's code for that signal. An endpoint that starts has
    nothing under way, and Ray's own handler prints addresses of its C++ part and aborts."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class StopSignals:
    """SIGINT and SIGTERM inside the block: the first asks to stop, the second to stop at once."""

    def __init__(self) -> None:
        self._count = 0
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous_handlers[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        # A counter and no lock: the main thread may hold any lock when it is interrupted.
        self._count += 1

    def wait(self) -> None:
        """Until somebody asks to stop."""
        while not self._count:
            time.sleep(ASKED_EVERY_S)

    @property
    def hurried(self) -> bool:
        return self._count > 1


def let_finish(entrance: Any, signals: StopSignals, grace_s: float) -> int:
    """New requests are refused from here on; waits for those under way, at most `grace_s`. Returns how many are left.

    entrance: a Serve handle. An entrance that does not answer has nothing under way any more.
    """
    deadline = time.monotonic() + grace_s
    left = 0
    try:
        entrance.stop_accepting.remote().result(timeout_s=ANSWER_S)
        while left := int(entrance.ongoing.remote().result(timeout_s=ANSWER_S)):
            if time.monotonic() > deadline or signals.hurried:
                break
            time.sleep(ASKED_EVERY_S)
        time.sleep(0.0 if signals.hurried else LAST_BYTES_S)
    except Exception as error:
        logger.error("the entrance does not answer while the endpoint stops: %s", error)
    if left:
        print(f"stopped with {left} answers under way", flush=True)
    return left


def main(application: str, grace_s: float) -> None:
    from ray import serve

    from actors.session import ray_session

    with ray_session("pddpo-serve/stop", address=os.environ.get("RAY_ADDRESS", "auto")), StopSignals() as signals:
        let_finish(serve.get_app_handle(application), signals, grace_s)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
