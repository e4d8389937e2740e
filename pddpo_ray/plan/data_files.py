"""A recipe's data files, looked at before anything runs: formats, rows that can be used, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from pddpo_ray.config import Config, NoWorldConfig
from pddpo_ray.config.loading import HUB
from pddpo_ray.data import Dimension, Settings
from pddpo_ray.data.inspection import Glance, glance
from pddpo_ray.data.sources import expand
from pddpo_ray.errors import UserError
from pddpo_ray.text.templates import OF_TOKENIZER, template_named

MOST = 1000
"""Rows of each file that a dry run looks at."""


def file_rows(config: Config) -> list[tuple[str, str]]:
    """(file, what its first rows hold) of every file of pairs and prompts. UserError where a file's rows are of no use.

    Data sets of the hub are not looked at: a dry run asks no network.
    """
    world = config.world
    if not isinstance(world, NoWorldConfig):
        return []
    if world.template != OF_TOKENIZER:
        template_named(world.template)  # UserError for one that there is not
    columns, ignore = world.columns, frozenset(world.ignore)
    helpful = Settings(means="helpful", columns=columns, ignore=ignore)
    harmless = Settings(means="harmless", columns=columns, ignore=ignore)
    kinds: list[tuple[str, Sequence[str], Settings, Dimension | None]] = [
        ("world.helpful", world.helpful, helpful, "helpful"),
        ("world.harmless", world.harmless, harmless, "harmless"),
        ("world.prompts", world.prompts, Settings(judged=False), None),
        ("certificate.prompts", config.certificate.prompts, Settings(judged=False), None),
    ]
    return [
        (name, _said(key, name, settings, dimension))
        for key, names, settings, dimension in kinds
        for name in expand(names)
    ]


def _said(key: str, name: str, settings: Settings, dimension: Dimension | None) -> str:
    if name.startswith(HUB):
        return "a data set of the hub: not looked at"
    seen = glance(name, settings, MOST)
    wrong = ", ".join(f"{count} {kind}" for kind, count in seen.kinds.most_common())
    if not _useful(seen, dimension):
        lacks = "holds a prompt" if dimension is None else f"says which of two answers is {_MORE[dimension]}"
        raise UserError(
            f"{key}: none of the first {seen.rows} rows of {name} {lacks}{f' ({wrong})' if wrong else ''};"
            f" `pddpo data check {name}` says what it holds"
        )
    first = "the first " if seen.rows == MOST else ""
    return f"{seen.format}: {seen.good} of {first}{seen.rows} rows are good{f'; {wrong}' if wrong else ''}"


_MORE = {"helpful": "more helpful", "harmless": "less harmful"}


def _useful(seen: Glance, dimension: Dimension | None) -> int:
    """Rows that are of use; a file of one dimension may state both."""
    return seen.good if dimension is None else seen.helpful + seen.harmless
