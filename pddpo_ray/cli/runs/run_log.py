"""`train.log` in the run folder: what a run says, for `pddpo logs`; and the end of a run that is told to stop."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from pddpo_ray.errors import StoppedError

LOG = "train.log"


class RunLog:
    """A text file that is opened once there is a run folder: a run that is refused leaves nothing behind."""

    encoding = "utf-8"

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / LOG
        self._file: TextIO | None = None

    def write(self, text: str) -> int:
        if self._file is None:
            if not self._path.parent.is_dir():
                return 0
            self._file = self._path.open("a", encoding="utf-8", errors="replace")
        return self._file.write(text)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def isatty(self) -> bool:
        return False

    def last(self, text: str) -> None:
        """Writes the last line of a run that has begun; a full disk, which may have ended it, is ignored."""
        with suppress(OSError):
            if self._file is None:
                return
            self.write(text + "\n")
            self.flush()

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


class Stop:
    """SIGTERM stops a run cleanly, as `pddpo stop` and schedulers ask."""

    def __init__(self) -> None:
        self.asked = False

    def install(self) -> None:
        """In the main thread, which alone may. Ray sets a handler of its own when a session begins."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) != self._end:
            signal.signal(signal.SIGTERM, self._end)

    def _end(self, number: int, _frame: Any) -> None:
        self.asked = True
        sys.exit(number)  # out of whatever the run waits for

    def check(self) -> None:
        """Call it at every event: an exit raised inside a finalizer or a callback is lost there."""
        if self.asked:
            sys.exit(signal.SIGTERM)
        self.install()


@contextmanager
def stoppable(run_dir: Path) -> Iterator[Stop]:
    """SIGTERM inside the block ends it. Raises StoppedError, also for the error that a library made of it."""
    before, stop = signal.getsignal(signal.SIGTERM), Stop()
    stop.install()
    try:
        yield stop
    except (SystemExit, Exception) as error:
        if not stop.asked and not (isinstance(error, SystemExit) and error.code == signal.SIGTERM):
            raise
        raise StoppedError(f"{run_dir} was told to stop: --resume continues it, finished phases are kept") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
