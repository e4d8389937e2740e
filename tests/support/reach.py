"""Which functions docs/paper.md and its study name in their tables, and which functions were entered."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import pddpo_lab
import pddpo_ray

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "docs" / "paper.md", ROOT / "lab" / "studies" / "paper-verified.md")
PACKAGES = tuple(str(Path(str(package.__file__)).parent) + os.sep for package in (pddpo_ray, pddpo_lab))
Entered = set[tuple[str, str]]
"""(file, qualified name) of functions."""


def named() -> list[str]:
    """Every function, class and module that a table of the pages names, in order."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return list(dict.fromkeys(re.findall(r"`(pddpo_(?:ray|lab)\.[\w.]+)`", "\n".join(rows))))


def functions_of(name: str) -> Entered:
    """The functions of which one has to be entered: the named one, or any that the named class or module defines.

    Empty for a record without code of its own, such as a section of a recipe.
    """
    return set(_codes(resolved(name)))


@contextmanager
def entered() -> Iterator[Entered]:
    """Functions of both packages that this process enters meanwhile, in threads that begin in here too."""
    seen: Entered = set()
    _forget_results()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGES):
            seen.add((code.co_filename, code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def _forget_results() -> None:
    """Functions that remember their results would not be entered for what an earlier run asked them."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in (pddpo_ray.__name__, pddpo_lab.__name__):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def resolved(name: str) -> object:
    """What a dotted name stands for, without calling properties."""
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[split:]:
            found = inspect.getattr_static(found, attribute)
        return found
    raise LookupError(name)


def _codes(found: object) -> Iterator[tuple[str, str]]:
    if isinstance(found, ModuleType):
        for value in vars(found).values():
            if getattr(value, "__module__", None) == found.__name__:
                yield from _codes(value)
    elif isinstance(found, type):
        for value in vars(found).values():
            yield from _codes(value)
    elif isinstance(found, tuple):
        for value in found:
            yield from _codes(value)
    elif isinstance(found, property):
        yield from _codes(found.fget)
    elif isinstance(found, cached_property):
        yield from _codes(found.func)
    elif isinstance(found, staticmethod | classmethod):
        yield from _codes(found.__func__)
    elif isinstance(found, FunctionType) and found.__code__.co_filename.startswith(PACKAGES):
        yield found.__code__.co_filename, found.__code__.co_qualname


def missing(seen: Entered, names: list[str]) -> list[str]:
    """Names of which no function was entered; records without code are never missing."""
    wanted: Mapping[str, Entered] = {name: functions_of(name) for name in names}
    return [name for name, functions in wanted.items() if functions and not functions & seen]
