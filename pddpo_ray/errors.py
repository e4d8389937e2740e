"""Errors that end a command, each with its exit code.

The message is one line for a person: what is wrong, where, and what to do about it. The command line prints it
without a traceback; anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence


class PddpoError(Exception):
    """Base of all errors below. `exit_code` is what the command line ends with."""

    exit_code = 1


class RunError(PddpoError):
    """Something failed while running: a delivery check, a deadline, a lost process."""

    exit_code = 1


class UserError(PddpoError):
    """What was asked for cannot be done as asked: a wrong key, a missing file, resources that are not there."""

    exit_code = 2


class ParkedError(PddpoError):
    """The run waits for labels and has released its resources; `--resume` continues it when they are there."""

    exit_code = 3


class DecisionNeeded(PddpoError):
    """The run cannot continue without a person's decision, which the message names."""

    exit_code = 4


class StoppedError(PddpoError):
    """The run was told to stop (SIGTERM); `--resume` continues it. The code is a shell's for that signal."""

    exit_code = 143


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it, and so on, each once: Ray raises errors that are their own cause."""
    ids: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in ids:
        ids.add(id(cause))
        yield cause
        cause = cause.__cause__


LONGEST_LINE = 400
RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?P<name>[A-Z]\w*)(?:: ?(?P<said>.*))?$")
"""The line under a traceback: the error's class and the beginning of its message."""
FRAME = re.compile(r'^\s*File ".+", line \d+|^(?:\x1b\[\d+m)?ray::')
DECORATION = re.compile(r"\x1b\[\d+m|^[ |+]*\|(?= )|^\(\w+ pid=\d+[^)]*\) ")
TO_READ = re.compile(
    r"^\W*(?:for (?:further|more) information|background on this error|(?:please )?(?:see|visit|refer to)|"
    r"(?:read|learn) more|documentation|docs?)\b.*https?://\S+(?:\s+\w+){0,4}\W*$|^\W*https?://\S+\W*$",
    re.IGNORECASE,
)
"""A line that only says where there is more to read."""


def one_line(error: BaseException | None) -> str:
    """An error in one line of at most `LONGEST_LINE` characters: its class and what it says, without links to read.

    Of an error that carries a traceback in its text, as Ray's do, it is the error under the last traceback. Errors of
    this project say everything in their message, and go without their class.
    """
    if error is None:
        return "without an error"
    name, lines = _under_the_last_traceback(
        type(error).__name__, [DECORATION.sub("", line) for line in str(error).splitlines()]
    )
    text = " ".join(" ".join(line.split()) for line in lines if line.strip() and not TO_READ.match(line))
    if not text:
        return name
    whole = text if _of_this_project(error, name) or text.startswith(f"{name}:") else f"{name}: {text}"
    return whole if len(whole) <= LONGEST_LINE else whole[: LONGEST_LINE - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _under_the_last_traceback(name: str, lines: list[str]) -> tuple[str, list[str]]:
    """Class and message of the error that a text's last traceback ends in; of a text without one, as they are."""
    frames = [number for number, line in enumerate(lines) if FRAME.match(line)]
    for number in range(frames[-1] + 1 if frames else len(lines), len(lines)):
        if raised := RAISED.match(lines[number]):
            return raised["name"], [raised["said"] or "", *lines[number + 1 :]]
    return name, lines


def _of_this_project(error: BaseException, name: str) -> bool:
    return isinstance(error, PddpoError) or name in {kind.__name__ for kind in PddpoError.__subclasses__()}


def nearest(word: str, words: Sequence[str], otherwise: str = "") -> str:
    """The end of a message about a name that is not known: `; did you mean ...?`, or `otherwise` where none is near."""
    close = difflib.get_close_matches(word, words, 1, 0.5)
    return f"; did you mean `{close[0]}`?" if close else otherwise


def nearest_or_all(word: str, words: Sequence[str]) -> str:
    """The same, with all names where none is near."""
    return nearest(word, words, f"; known are {', '.join(words) or 'none'}")


EXTRAS: Mapping[str, tuple[str, ...]] = {
    "judge": ("httpx",),
    "train": (
        "alembic",
        "datasets",
        "fsspec",
        "jinja2",
        "matplotlib",
        "packaging",
        "peft",
        "psutil",
        "pyarrow",
        "ray",
        "safetensors",
        "sqlalchemy",
        "tensorboard",
        "tokenizers",
        "torch",
        "transformers",
    ),
    "serve": ("fastapi", "prometheus_client", "starlette", "uvicorn"),
    "annotate": ("markdown_it", "nh3", "segno"),
    "cpu": ("deepspeed", "vllm"),
    "postgres": ("psycopg",),
    "qlora": ("bitsandbytes",),
    "trl": ("accelerate", "trl"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
}
"""Modules by the smallest extra that brings them. On a GPU machine `gpu` stands in the place of `cpu`."""


def missing_extra(module: str | None) -> str | None:
    """What to install where `module` cannot be imported, in one line; None where no extra brings it."""
    top = (module or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if top in modules:
            return f"this needs {top}, which is not installed; in a checkout: pip install '.[{extra}]'"
    return None
