"""A user's function in a process of its own, so that one that hangs can be stopped.

Run as `python function_worker.py module:name`. Reads one JSON object {prompt, response, row} a line; writes one a line:
{"value": ...}, {"raised": "..."} or {"wrong": "..."}; the first line is {"ready": version} or {"refused": "..."}.
"""

import hashlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO


def main(name: str, output: TextIO) -> None:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, attribute)
    except Exception as error:
        return say(output, {"refused": f"cannot be imported: {type(error).__name__}: {error}"})
    if not callable(function):
        return say(output, {"refused": "is not a function"})
    say(output, {"ready": version_of(module)})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            value = function(request["prompt"], request["response"], request["row"])
        except Exception as error:
            say(output, {"raised": f"{type(error).__name__}: {error}"})
        else:
            say(output, reply(value))


def reply(value: Any) -> dict[str, Any]:
    """A number, True, False or None as it is; anything else in words. Numbers of numpy and torch are numbers."""
    if not isinstance(value, str) and callable(getattr(value, "item", None)):
        value = value.item()
    if value is None or isinstance(value, bool | int | float):
        return {"value": value}
    return {"wrong": repr(value)[:200]}


def version_of(module: Any) -> str:
    """The module's own `__version__`, and a hash of its file."""
    path = getattr(module, "__file__", None)
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16] if path else "no file"
    return " ".join(part for part in (str(getattr(module, "__version__", "")), digest) if part)


def say(output: TextIO, message: dict[str, Any]) -> None:
    output.write(json.dumps(message) + "\n")
    output.flush()


if __name__ == "__main__":
    # What the function prints must not be taken for its answer.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    main(sys.argv[1], replies)
