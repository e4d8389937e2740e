"""`pddpo export`: a policy of a run as a folder that transformers and vLLM load without this package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pddpo_ray.cli.output import print_json
from pddpo_ray.cli.runs.recipe_of_run import find_run, store_of
from pddpo_ray.errors import UserError


def export(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    to: Annotated[Path, typer.Option("--to", help="Folder to write: new, or empty.", metavar="DIR")],
    round_: Annotated[
        int | None, typer.Option("--round", min=1, help="The policy of this round, released or not.", metavar="K")
    ] = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="The adapter alone, in peft's layout.")] = False,
    journal: Annotated[str | None, typer.Option(help="Database URL, where the recipe names one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write the released policy as a model folder.

    Or the policy of a round; with tokenizer and model card.
    """
    stored = find_run(run, journal)
    if stored.config.policies != "language models":
        policies = stored.config.policies
        raise UserError(f"the policies of {run} are {policies}, not language models: there is nothing to export")
    # Imported here: configuration and storage take a second to load.
    from pddpo_ray.serving.catalog import read_catalog
    from pddpo_ray.serving.export import export as write_policy
    from pddpo_ray.serving.export import policy_to_take, refuse_full

    target = to.expanduser().absolute()
    refuse_full(target)
    with store_of(stored, to_read=True) as store:
        policy = policy_to_take(read_catalog(store), run, round_)
        write_policy(stored.folder, stored.config, store, policy, target, adapter=adapter)
    certified = policy.certificate is not None
    if as_json:
        summary = {"folder": str(target), "round": policy.round, "release": policy.release, "certified": certified}
        print_json(summary | {"sha256": policy.version.sha256, "adapter": adapter})
    else:
        status = "certified" if certified else "uncertified"
        typer.echo(f"round {policy.round} ({policy.release}, {status}): {target}")
