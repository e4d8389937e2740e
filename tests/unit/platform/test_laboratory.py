"""The laboratory is a package of its own: its commands join `pddpo` if it is installed; the product works without."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from setuptools import find_packages

from pddpo_ray import registry
from pddpo_ray.cli.main import VERBS, main
from pddpo_ray.config import loading
from pddpo_ray.errors import UserError
from pddpo_ray.registry import LAB, NO_LAB, OF_LAB, code_of

ROOT = Path(__file__).parents[3]
GROUP = "pddpo_ray.commands"


def described(file: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / file).read_text(encoding="utf-8"))


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """The commands of installed packages: none, until the test adds one."""
    entries: list[EntryPoint] = []
    registry._entries_of_packages.cache_clear()
    monkeypatch.setattr(registry, "entry_points", lambda group: [one for one in entries if one.group == group])
    yield entries
    registry._entries_of_packages.cache_clear()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as end:
        main(list(words))
    shown = capsys.readouterr()
    return end.value.code, shown.out, shown.err


@pytest.mark.slow
def test_without_the_laboratory_help_and_its_commands_say_where_they_live(
    capsys: pytest.CaptureFixture[str], commands: list[EntryPoint]
) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert " ".join(out.split()).endswith(NO_LAB)
    for name in LAB["commands"]:
        assert run(capsys, name, "--help") == (2, "", f"pddpo: {NO_LAB}\n")


@pytest.mark.slow
def test_without_the_laboratory_its_recipes_methods_and_tables_say_where_they_live(
    capsys: pytest.CaptureFixture[str], commands: list[EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pddpo_lab.worlds.tabular.backends", None)
    assert run(capsys, "train", "tabular")[2].endswith(f"lists them all, and more are {OF_LAB}\n")
    refused = run(capsys, "train", "text-world", "algorithm=mocan", "--dry-run")[2]
    assert refused.endswith(f"mocan is a method {OF_LAB}\n")
    with pytest.raises(UserError, match=f"^tabular is a world {OF_LAB}$"):
        code_of("worlds", "tabular")
    assert {"text-world", "demo", "align", "gpu/o-pd-dpo-8"} <= set(loading.recipe_names())


@pytest.mark.slow
def test_the_laboratory_brings_every_command_that_help_would_miss(
    capsys: pytest.CaptureFixture[str], commands: list[EntryPoint]
) -> None:
    brought = described("lab/pyproject.toml")["project"]["entry-points"][GROUP]
    assert set(brought) == set(LAB["commands"])
    commands += [EntryPoint(name, value, GROUP) for name, value in brought.items()]
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert NO_LAB.partition(":")[0] not in " ".join(out.split())
    assert all(f"  {name} " in out for name in (*VERBS, *LAB["commands"]))
    for name in LAB["commands"]:
        code, out, _ = run(capsys, name, "--help")
        assert code == 0
        assert f"Usage: pddpo {name} " in out


def test_the_package_holds_no_part_of_the_laboratory() -> None:
    where = described("pyproject.toml")["tool"]["setuptools"]["packages"]["find"]
    packages = find_packages(str(ROOT), **where)
    assert {name.partition(".")[0] for name in packages} == {"pddpo_ray", "actors", "deploy"}


def test_both_packages_have_one_version() -> None:
    lab, product = described("lab/pyproject.toml")["project"], described("pyproject.toml")["project"]
    assert lab["version"] == product["version"]
    assert lab["dependencies"] == [f"pddpo-ray[annotate]=={product['version']}"]
