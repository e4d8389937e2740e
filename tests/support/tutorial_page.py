"""A page's commands and blocks, to be run by a test as they stand."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pddpo_ray.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def commands(page: str, program: str = "pddpo") -> list[list[str]]:
    """The words of every command of a program on a page, in order."""
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True)) and words[0] == program]


def ran(folder: Path, words: list[str], code: int = 0, environment: dict[str, str] | None = None) -> str:
    """What a `pddpo` command says, run in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "pddpo_ray", *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == code, (words, done.stdout[-2000:], done.stderr[-3000:])
    return done.stdout + done.stderr


def ran_here(folder: Path, words: list[str], code: int = 0) -> str:
    """The same in this process, which has its imports behind it: most of a short command's time."""
    said = io.StringIO()
    with contextlib.ExitStack() as here:
        for context in (contextlib.chdir(folder), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said)):
            here.enter_context(context)
        ended = here.enter_context(pytest.raises(SystemExit))
        main(words[1:])
    assert ended.value.code == code, (words, said.getvalue()[-5000:])
    return said.getvalue()
