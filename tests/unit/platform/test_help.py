"""`--help`: whole sentences on a terminal of 80 columns, and the same words for what the program is in every place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import typer

from pddpo_ray.cli.main import app

ROOT = Path(__file__).parents[3]


def lists_of_commands(command: Any, name: str, above: Any = None) -> dict[str, str]:
    """The help of a program and of each of its groups, by name, on a terminal of 80 columns."""
    context = click.Context(command, above, name, terminal_width=80)
    below = {verb: command.get_command(context, verb) for verb in command.list_commands(context)}
    groups = (lists_of_commands(one, verb, context) for verb, one in below.items() if hasattr(one, "list_commands"))
    return {name: command.get_help(context)} | {key: text for group in groups for key, text in group.items()}


def test_no_list_of_commands_cuts_what_a_command_does() -> None:
    lists = lists_of_commands(typer.main.get_command(app), "pddpo")
    assert {"pddpo", "annotations", "world"} <= set(lists)
    for name, text in lists.items():
        assert not re.findall(r"^  .*\.\.\.$", text, re.M), name


def test_every_place_says_what_the_program_is_in_the_same_words() -> None:
    told = "Align a language model under limits you state, and release it only with a"
    for file in ("pddpo_ray/__init__.py", "pyproject.toml", "mkdocs.yml", "pddpo_ray/cli/main.py"):
        assert told in (ROOT / file).read_text(encoding="utf-8"), file
