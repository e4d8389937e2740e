"""Tables for users of other trainers: every key exists, and TRL's own arguments of DPO are all there."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from pddpo_ray.config.explaining import every_key

DOCS = Path(__file__).parents[3] / "docs"


def rows(page: str) -> list[tuple[str, str]]:
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("| `")]
    return [tuple(line.strip("| ").split(" | ", 1)) for line in lines]  # type: ignore[misc]


@pytest.mark.parametrize("page", ["from-trl.md", "from-openrlhf.md"])
def test_every_key_exists(page: str) -> None:
    keys = {one.key for one in every_key()}
    named = {key for _, here in rows(page) for key in re.findall(r"`([a-z_.]+)`", here)}
    assert len(named) > 10
    assert not named - keys


def test_every_argument_of_dpo_has_a_row() -> None:
    trl = find_spec("trl")
    if trl is None or trl.origin is None:
        pytest.skip("TRL is not installed")
    source = ast.parse((Path(trl.origin).parent / "trainer" / "dpo_config.py").read_text())
    (config,) = [one for one in source.body if isinstance(one, ast.ClassDef) and one.name == "DPOConfig"]
    theirs = {
        one.target.id for one in config.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    ours = {name for theirs_, _ in rows("from-trl.md") for name in re.findall(r"`(\w+)`", theirs_)}
    assert not theirs - {"_VALID_DICT_FIELDS"} - ours
