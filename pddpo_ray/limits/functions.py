"""Functions of users as sources: `package.module:name`, run in a process that is stopped where it takes too long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

from pddpo_ray.errors import UserError
from pddpo_ray.limits.sources import Answer, Opening, Source, Unmeasured, one_by_one
from pddpo_ray.limits.written_numbers import seconds_of

ANSWER_SECONDS = 10.0
"""How long a function may take for one answer, unless the limit says otherwise."""
IMPORT_SECONDS = 120.0
WORKER = Path(__file__).with_name("function_worker.py")


def function_source(opening: Opening) -> Source:
    """A function called as name(prompt, response, row), `seconds` an answer. Raises UserError if it cannot be found.

    Its module may lie in `folder`, in the working directory, or where Python finds modules.
    """
    where, name = opening.where, opening.what
    seconds = seconds_of(f"{where}.seconds", opening.options.get("seconds", ANSWER_SECONDS))
    folder = Path(str(opening.options.get("folder", opening.folder)))
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UserError(f"{where}: write package.module:name, got `{name}`")
    process = FunctionProcess(name, seconds, folder)
    try:
        version = process.start()
    except ValueError as error:
        raise UserError(f"{where}: {name} {error}") from error
    return Source(f"function {name}", f"function {name} {version}", one_by_one(process), opening.scale)


class FunctionProcess:
    """The function's process: started when it is needed, killed and started anew after a time-out."""

    def __init__(self, name: str, seconds: float, folder: Path) -> None:
        self._name, self._seconds, self._folder = name, seconds, folder
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        """Starts it; returns its module's version. Raises ValueError with the cause."""
        paths = [str(self._folder.absolute()), str(Path.cwd()), *filter(None, sys.path)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), self._name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment,
            start_new_session=True,
        )  # fmt: skip
        weakref.finalize(self, _stop, self._process)
        reply = self._exchange(None, IMPORT_SECONDS)
        if reply is None:
            raise ValueError(f"was not imported within {IMPORT_SECONDS:g} s")
        if "ready" not in reply:
            raise ValueError(str(reply.get("refused", "ended while it was imported")))
        return str(reply["ready"])

    def __call__(self, answer: Answer) -> object:
        """What the function returned, or Unmeasured: it raised, took too long or ended its process."""
        if self._process is None:
            self.start()
        request = {"prompt": answer.prompt, "response": answer.response, "row": dict(answer.row)}
        reply = self._exchange(json.dumps(request), self._seconds)
        if reply is None:
            return Unmeasured(f"took longer than {self._seconds:g} s")
        if "raised" in reply:
            return Unmeasured(f"raised {reply['raised']}")
        if "wrong" in reply:
            return Unmeasured(f"gave {reply['wrong']}, which is no number")
        return reply["value"] if "value" in reply else Unmeasured("ended its process")

    def _exchange(self, line: str | None, seconds: float) -> dict[str, Any] | None:
        """Sends a line and reads one; None after `seconds`, and {} if the process ended. Both stop the process."""
        process, replies = self._process, list[str]()
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        sender, receiver = process.stdin, process.stdout

        def talk() -> None:
            try:
                if line is not None:
                    sender.write(line + "\n")
                    sender.flush()
                replies.append(receiver.readline())
            except (OSError, ValueError):
                replies.append("")

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        thread.join(seconds)
        if replies and replies[0]:
            reply: dict[str, Any] = json.loads(replies[0])
            return reply
        late = thread.is_alive()
        _stop(process)
        thread.join()
        self._process = None
        return None if late else {}


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)  # and what the function itself started
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue
