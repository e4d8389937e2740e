"""`pddpo world`: a text world for other trainers, as a folder and as an endpoint that labels."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.web.listening import BehindProxy, Host, refuse_open_network
from pddpo_ray.cli.output import print_json
from pddpo_ray.errors import UserError
from pddpo_ray.storage.whole_files import write_secret

if TYPE_CHECKING:
    from pddpo_ray.config import Config
    from pddpo_ray.worlds.text.prepared_world import PreparedTextWorld

RECIPE = "text-world"
"""What `--world text` means."""
TOKEN = "world-labels-token"
"""File beside the trained references, readable by its owner alone."""
SAYS_SOMETHING = ("world", "beta", "reward_max", "limits", "dual", "policy", "feedback", "rollout")

World = Annotated[
    str, typer.Option("--world", help="text, a recipe of a text world, or a folder that `world export` wrote.")
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the world, short for world.seed=N.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Its settings, e.g. limits.cost.at_most=-3.2", metavar="[KEY=VALUE]..."),
]

app = typer.Typer(help="Text worlds for other trainers: export or serve one.", no_args_is_help=True)


@app.callback()
def world() -> None:
    """Text worlds for other trainers: export or serve one."""


@app.command()
def export(
    to: Annotated[Path, typer.Option("--to", help="Folder to write: new, or empty.", metavar="DIR")],
    overrides: Overrides = None,
    name: World = "text",
    seed: Seed = None,
    pairs: Annotated[int | None, typer.Option(min=1, help="Offline pairs; as many as the recipe's.")] = None,
    with_truth: Annotated[
        bool, typer.Option("--with-truth", help="Also truth.json: reward and cost of every answer.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the files of an earlier export.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a text world as files for any trainer.

    Prompts, offline pairs, reference model and settings.
    """
    chosen = choose_world(name, seed, overrides or [])
    from pddpo_lab.worlds.exported_world import Wanted, export_world, refuse_full
    from pddpo_ray.driver.provenance import sitting

    target = to.expanduser().absolute()
    refuse_full(target, force)
    wanted = Wanted(pairs or chosen.config.offline.pairs, with_truth)
    names = export_world(chosen.config, chosen.prepare(), wanted, target, sitting(), force=force)
    if as_json:
        print_json({"folder": str(target), "files": names, "pairs": wanted.pairs})
    else:
        typer.echo(f"{target}: {', '.join(names)}")


@app.command()
def serve(
    overrides: Overrides = None,
    name: World = "text",
    seed: Seed = None,
    label_seed: Annotated[int, typer.Option(min=0, help="Seed of the labels.")] = 0,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8810,
    behind_proxy: BehindProxy = False,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that callers show; made where it is missing.")
    ] = None,
) -> None:
    """Serve labels drawn from a text world's truth.

    As plain HTTP and as an OpenAI-style judge.
    """
    refuse_open_network(host, behind_proxy, "the token")
    chosen = choose_world(name, seed, overrides or [])
    from pddpo_lab.worlds.label_server import serve as serve_labels
    from pddpo_lab.worlds.labels_by_text import LabelsByText
    from pddpo_ray.storage.whole_files import cache_folder

    file = (token_file or cache_folder() / TOKEN).expanduser().absolute()
    token = _token_in(file)
    typer.echo(f"labels at http://{host}:{port}/v1   token: {file}")
    serve_labels(LabelsByText(chosen.prepare(), label_seed), token, host=host, port=port, behind_proxy=behind_proxy)


@dataclass(frozen=True)
class ChosenWorld:
    """The world that the options name: settings that were checked, and the exported folder, if one was named."""

    config: Config
    folder: Path | None

    def prepare(self) -> PreparedTextWorld:
        """Reference and truth. A reference that is in no cache yet is trained first."""
        from transformers.utils import logging

        from pddpo_lab.worlds.exported_world import prepare_exported
        from pddpo_ray.worlds.text.prepared_world import prepare_text_world

        logging.disable_progress_bar()
        return prepare_text_world(self.config) if self.folder is None else prepare_exported(self.folder)


def choose_world(name: str, seed: int | None, overrides: Sequence[str]) -> ChosenWorld:
    """UserError for a table, for settings that say nothing about a world, and for a folder together with settings."""
    from pddpo_ray.config import TextWorldConfig, load

    if Path(name).is_dir():
        if seed is not None or overrides:
            given = f"--seed {seed}" if seed is not None else overrides[0]
            raise UserError(f"--world {name} has its settings in world.json: leave {given} out")
        from pddpo_lab.worlds.exported_world import exported_settings

        folder = Path(name).absolute()
        return ChosenWorld(exported_settings(folder), folder)
    for text in overrides:
        if text.split("=")[0].split(".")[0] not in SAYS_SOMETHING:
            raise UserError(f"`{text}` says nothing about a world: settings begin with {'., '.join(SAYS_SOMETHING)}.")
    own = [*overrides, *([] if seed is None else [f"world.seed={seed}"])]
    config = load(RECIPE if name == "text" else name, own)
    if not isinstance(config.world, TextWorldConfig):
        kind = "files" if config.world is None else f"a world of kind {config.world.kind}"
        raise UserError(f"--world {name} is {kind}; a text world is needed, e.g. text")
    if not config.stated[0].labelled:
        others = " ".join(f"limits.{one}=null" for one in config.limits if one != "cost")
        raise UserError(
            f"--world {name} has limits that sources measure ({', '.join(config.limits)}), a world one on its own cost:"
            f" {others} 'limits.cost={{logit: {{world: cost}}, at_most: -3, labels_each: 32}}'"
        )
    return ChosenWorld(config.labelled_by_world(), None)


def _token_in(file: Path) -> str:
    """The token, made where there is none yet in a file that only its owner can read."""
    if not file.exists():
        write_secret(file, secrets.token_urlsafe(24) + "\n")
    token = file.read_text(encoding="utf-8").strip()
    if not token:
        raise UserError(f"--token-file {file} is empty: write a token into it, or remove it to have one made")
    return token
