"""From the name of a source in a limit to the source itself: opened once, with what it needs.

for stated, source in read_limits(Path("limits.yaml")):
    ask(stated.limit.name, source, answers, stated.asking)
"""

from __future__ import annotations

from pathlib import Path

from pddpo_ray.config.document import read_document
from pddpo_ray.errors import UserError
from pddpo_ray.limits.functions import ANSWER_SECONDS, function_source
from pddpo_ray.limits.local_sources import json_schema_source, regex_source, rule_source
from pddpo_ray.limits.reading import StatedLimit, seconds_of, stated_limits
from pddpo_ray.limits.sources import Source


def read_limits(path: Path) -> list[tuple[StatedLimit, Source]]:
    """The limits of a recipe or of a file with `limits:` alone, opened. Raises UserError with what is wrong."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a file with `limits:` in it")
    document, _ = read_document(path, path.name)
    return [(stated, open_source(stated, path.parent)) for stated in stated_limits(document, path.name)]


def open_source(stated: StatedLimit, folder: Path) -> Source:
    """What measures a limit. Paths are relative to `folder`. Raises UserError where it cannot be had."""
    name, kind = stated.source, stated.limit.quantity.kind
    where = f"{stated.where}.{kind}.{name.kind}"
    if name.kind == "rule":
        return rule_source(where, name.what)
    if name.kind == "regex":
        return regex_source(where, name.what, folder)
    if name.kind == "json_schema":
        return json_schema_source(where, name.what, folder)
    if name.kind == "function":
        seconds = seconds_of(f"{where}.seconds", name.options.get("seconds", ANSWER_SECONDS))
        return function_source(where, name.what, stated.scale, seconds)
    raise UserError(f"{where}: `{name.kind}` cannot measure a file of answers")
