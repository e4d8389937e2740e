"""`pddpo`: the verbs, and how every command ends.

Exit codes: 0 done, 1 failed, 2 user error, 3 parked for labels, 4 needs a decision, 143 told to stop; of `certify`
also 5 undecided and 6 rejected. This module and the signatures of the verbs import neither torch nor ray, vllm or
transformers, so `--help` answers at once; a verb imports what it needs when it runs.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pddpo_ray import __version__, registry
from pddpo_ray.cli import data, demo, doctor, evaluate, explain, init, limits, model, recipes, scorer
from pddpo_ray.cli.runs import certify, release, report, status, train, withdraw
from pddpo_ray.errors import PddpoError, UserError, missing_extra
from pddpo_ray.registry import LAB, NO_LAB


class Commands(TyperGroup):
    """The shipped commands, and those of installed packages (entry points of the group `pddpo_ray.commands`)."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *registry.names("commands")]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (shipped := super().get_command(ctx, cmd_name)) is not None:
            return shipped
        if cmd_name not in (*registry.names("commands"), *LAB["commands"]):
            return None
        return _click_command(cmd_name, registry.command(cmd_name))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if not set(LAB["commands"]) <= set(registry.names("commands")):
            formatter.write_paragraph()
            formatter.write_text(NO_LAB)


def _click_command(name: str, command: Any) -> Any:
    """A function, or a Typer of several, as a command of this name."""
    group = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(command, typer.Typer):
        group.add_typer(command, name=name)
    else:
        group.callback()(lambda: None)
        group.command(name)(command)
    click_group = typer.main.get_command(group)
    assert isinstance(click_group, TyperGroup)
    return click_group.commands[name]


ABOUT = """\
Align a language model under limits you state, and release it only with a statistical certificate that they hold.

First: `pddpo demo`. With your own files: `pddpo init`.
"""

app = typer.Typer(
    name="pddpo",
    cls=Commands,
    help=ABOUT,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

VERBS: dict[str, Callable[..., Any]] = {
    "demo": demo.demo,
    "train": train.train,
    "report": report.report,
    "status": status.status,
    "doctor": doctor.doctor,
    "recipes": recipes.recipes,
    "explain": explain.explain,
    "init": init.init,
    "certify": certify.certify,
    "release": release.release,
    "rollback": release.rollback,
    "withdraw": withdraw.withdraw,
    "evaluate": evaluate.evaluate,
}
for _name, _verb in VERBS.items():
    app.command(_name)(_verb)
app.add_typer(data.app, name="data")
app.add_typer(limits.app, name="limits")
app.add_typer(certify.app, name="certificate")
app.add_typer(model.app, name="model")
app.add_typer(scorer.app, name="scorer")


MISSING = (errno.ENOENT, errno.EISDIR, errno.EEXIST)
REFUSED = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EROFS)
"""What the system says of a path that cannot be made or read; a full disk is another matter."""
LONGEST_SHOWN = 60
QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_VERBOSITY": "error"}
"""Bars of transformers, datasets and the hub, and what the hub says of each retry: none of a command's own lines. They
read it when they are imported; who sets it otherwise gets them."""


def _print_version(flag: bool) -> None:
    if flag:
        typer.echo(f"pddpo {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Options of the program itself; what it says of itself is ABOUT."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and end the process with its exit code. Our own errors are one line on stderr."""
    words = sys.argv[1:] if arguments is None else arguments
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        demand_text(words)
        app(args=arguments, prog_name="pddpo")
    except PddpoError as error:
        print(f"pddpo: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        advice = unusable_path(error, words)
        if advice is None:
            raise
        print(f"pddpo: {advice}", file=sys.stderr)
        sys.exit(UserError.exit_code)
    except ModuleNotFoundError as error:
        advice = missing_extra(error.name)
        if advice is None:
            raise
        print(f"pddpo: {advice}", file=sys.stderr)
        sys.exit(UserError.exit_code)


def demand_text(words: Sequence[str]) -> None:
    """Raises UserError for a word that no file and no database can hold: not UTF-8, or with a null character."""
    for word in words:
        if "\0" in word or any("\ud800" <= letter <= "\udfff" for letter in word):
            raise UserError(f"{word!a} is no text in UTF-8, or has a null character; name it otherwise")


def unusable_path(error: OSError, words: Sequence[str]) -> str | None:
    """The message for a path of the command line that cannot be used, or a file made for it beside or inside it.

    None for any other path, and for a file that is missing in a named folder: that is a bug and keeps its traceback.
    """
    if error.errno not in (*MISSING, *REFUSED) or not isinstance(error.filename, str):
        return None
    path = Path(error.filename).absolute()
    for word in words:
        word_path = Path(word.partition("=")[2] if word.startswith("--") and "=" in word else word).absolute()
        beside = path.parent == word_path.parent and word_path.name in path.name
        inside = error.errno in REFUSED and word_path in path.parents
        if path == word_path or beside or inside:
            shown = word if len(word) <= LONGEST_SHOWN else f"{word[:LONGEST_SHOWN]}… ({len(word)} characters)"
            return f"{shown} cannot be used: {os.strerror(error.errno)}; name another"
    return None
