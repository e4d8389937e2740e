"""`pddpo`: the verbs, and how every command ends.

Exit codes: 0 done, 1 failed, 2 user error, 3 parked for labels, 4 needs a decision, 143 told to stop; of `certify`
also 5 undecided and 6 rejected. This module and the signatures of the verbs import neither torch nor ray, vllm or
transformers, so `--help` answers at once; a verb imports what it needs when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from pddpo_ray import __version__
from pddpo_ray.cli import (
    annotate,
    certify,
    chat,
    compare,
    data,
    demo,
    doctor,
    evaluate,
    explain,
    export,
    init,
    limits,
    model,
    operate,
    recipes,
    release,
    report,
    score,
    scorer,
    serve,
    simulate_annotators,
    status,
    submit,
    train,
    verify,
    withdraw,
    world,
)
from pddpo_ray.cli import annotations as annotation_files
from pddpo_ray.errors import PddpoError, UserError, missing_extra

app = typer.Typer(
    name="pddpo",
    help="Align a language model online under a cost limit, with a delivery check on every round.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

VERBS: dict[str, Callable[..., Any]] = {
    "demo": demo.demo,
    "train": train.train,
    "report": report.report,
    "status": status.status,
    "stop": operate.stop,
    "logs": operate.logs,
    "doctor": doctor.doctor,
    "recipes": recipes.recipes,
    "explain": explain.explain,
    "init": init.init,
    "verify": verify.verify,
    "annotate": annotate.annotate,
    "simulate-annotators": simulate_annotators.simulate_annotators,
    "serve": serve.serve,
    "export": export.export,
    "chat": chat.chat,
    "certify": certify.certify,
    "release": release.release,
    "rollback": release.rollback,
    "withdraw": withdraw.withdraw,
    "submit": submit.submit,
    "evaluate": evaluate.evaluate,
    "score": score.score,
    "compare": compare.compare,
}
for _name, _verb in VERBS.items():
    app.command(_name)(_verb)
app.add_typer(data.app, name="data")
app.add_typer(limits.app, name="limits")
app.add_typer(certify.app, name="certificate")
app.add_typer(model.app, name="model")
app.add_typer(scorer.app, name="scorer")
app.add_typer(world.app, name="world")
app.add_typer(annotation_files.app, name="annotations")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pddpo {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Align a language model online under a cost limit, with a delivery check on every round."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and end the process with its exit code. Our own errors are one line on stderr."""
    try:
        app(args=arguments, prog_name="pddpo")
    except PddpoError as error:
        print(f"pddpo: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        advice = missing_extra(error.name)
        if advice is None:
            raise
        print(f"pddpo: {advice}", file=sys.stderr)
        sys.exit(UserError.exit_code)
