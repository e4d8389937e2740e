"""The pages for whoever comes from another library: every argument of theirs once, and keys that there are."""

from __future__ import annotations

import dataclasses
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from pddpo_ray.config.explaining import every_key

ROOT = Path(__file__).parents[3]
TRL, OPENRLHF = (ROOT / "docs" / f"from-{name}.md" for name in ("trl", "openrlhf"))
NAMED = re.compile(r"`([^`]+)`")


def rows(page: Path) -> list[tuple[str, list[str], str, str]]:
    """(section, arguments, what stands here, the note) of every row below a table's head."""
    found, section = [], ""
    for line in page.read_text(encoding="utf-8").splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        if line.startswith("| `"):
            theirs, here, note = (cell.strip() for cell in line.strip("|").split(" | "))
            found.append((section, NAMED.findall(theirs), here, note))
    return found


def arguments(page: Path, section: str = "") -> list[str]:
    return sorted(name for at, names, _, _ in rows(page) for name in names if at == section)


@pytest.mark.parametrize("page", [TRL, OPENRLHF], ids=lambda page: page.stem)
def test_every_key_exists_and_what_is_not_here_has_its_reason(page: Path) -> None:
    known = {one.key for one in every_key()}
    for _, names, here, note in rows(page):
        assert here == "not here" or NAMED.findall(here), names
        assert set(NAMED.findall(here)) <= known, names
        assert here != "not here" or note.startswith("because "), names


def test_every_flag_of_openrlhf_stands_in_its_table_once() -> None:
    """Names of flags as its `--help` has them, with the version that they are of."""
    release, *flags = (ROOT / "tests" / "data" / "openrlhf-dpo-flags.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert release in OPENRLHF.read_text(encoding="utf-8")
    assert arguments(OPENRLHF) == sorted(flags)


@pytest.mark.slow
def test_every_argument_of_trl_stands_in_its_table_once() -> None:
    """Imports TRL's own classes, which takes seconds."""
    if find_spec("trl") is None:
        pytest.skip("TRL is not installed: its arguments cannot be compared")
    stated = re.search(r"TRL (\d+\.\d+)", TRL.read_text(encoding="utf-8"))
    installed = version("trl")
    assert stated is not None
    assert installed.startswith(f"{stated[1]}."), f"the page is of TRL {stated[1]}, here is {installed}"
    from trl import DPOConfig, GRPOConfig

    dpo, grpo = ({field.name for field in dataclasses.fields(one)} for one in (DPOConfig, GRPOConfig))
    common = {name for name in dpo & grpo if name not in ("loss_type", "pad_to_multiple_of")}
    assert arguments(TRL, "DPOConfig and GRPOConfig") == sorted(common)
    assert arguments(TRL, "DPOConfig alone") == sorted(dpo - common)
    assert arguments(TRL, "GRPOConfig alone") == sorted(grpo - common)
