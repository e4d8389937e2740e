"""Errors that end a command, each with its exit code.

The message is one line for a person: what is wrong, where, and what to do about it. The command line prints it
without a traceback; anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence


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
    """The run waits for labels and has released its resources; `--resume` goes on when they are there."""

    exit_code = 3


class DecisionNeeded(PddpoError):
    """The run cannot go on without a person's decision, which the message names."""

    exit_code = 4


class StoppedError(PddpoError):
    """The run was told to stop (SIGTERM); `--resume` goes on. The code is a shell's for that signal."""

    exit_code = 143


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
            return f"this needs {top}, which is not installed: pip install 'pddpo-ray[{extra}]'"
    return None
