"""A run is a thing: its folder can be moved, renamed, copied, made read-only and given more rounds."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from pddpo_ray.backends.preflight import take_new_identity
from pddpo_ray.cli.main import main
from pddpo_ray.config import Config, load
from pddpo_ray.driver.run import RoundFinished, run_recipe
from pddpo_ray.errors import DecisionNeeded, UserError
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.identity import IDENTITY, open_folder
from pddpo_ray.storage.whole_files import JOURNAL, RESULT
from tests.unit.loop.small_run import SMALL, finish, run_of, small, story

OPEN_ENDED = "dual.rule={kind: anytime}"


class PowerCutError(Exception):
    """Ends a run where a test wants it to end."""


def stop_after_one(event: object) -> None:
    if isinstance(event, RoundFinished):
        raise PowerCutError


def tree(folder: Path) -> dict[str, tuple[str, int]]:
    """{path: (hash, mtime)} of every file."""
    return {
        path.relative_to(folder).as_posix(): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def command(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """The folder of a run that stopped after its first of two rounds."""
    with pytest.raises(PowerCutError):
        run_recipe(small(OPEN_ENDED), tmp_path / "first", progress=stop_after_one)
    return tmp_path / "first"


@pytest.mark.run
def test_a_renamed_run_goes_on_as_if_it_had_not_been_renamed(half: Path, tmp_path: Path) -> None:
    identity = run_of(half)
    moved = half.rename(tmp_path / "second")
    assert finish(small(OPEN_ENDED), moved, resume=True) == finish(small(OPEN_ENDED), tmp_path / "whole")
    assert run_of(moved) == identity
    with open_folder(moved) as journal:
        assert journal.about.parent is None
        assert len(journal.about.sittings) == 2


@pytest.mark.run
def test_a_copy_stops_until_it_is_told_to_be_a_run_of_its_own(half: Path, tmp_path: Path) -> None:
    parent, copy = run_of(half), tmp_path / "copy"
    shutil.copytree(half, copy)
    before = tree(copy)
    with pytest.raises(DecisionNeeded, match=r"copy of the run in .*first.*--resume --new-id` makes it"):
        run_recipe(small(OPEN_ENDED), copy, resume=True)
    assert tree(copy) == before
    child = take_new_identity(small(OPEN_ENDED), copy)
    assert child not in (parent, "copy")
    assert finish(small(OPEN_ENDED), copy, resume=True) == finish(small(OPEN_ENDED), half, resume=True)
    with open_folder(copy) as journal:
        assert (journal.run_id, journal.about.parent) == (child, parent)
    provenance = json.loads((copy / RESULT).read_text())["provenance"]
    assert (provenance["run"], provenance["parent"], provenance["sittings"]) == (child, parent, 2)


@pytest.mark.run
def test_a_copy_whose_original_is_gone_is_a_moved_run(half: Path, tmp_path: Path) -> None:
    shutil.copytree(half, tmp_path / "copy")
    shutil.rmtree(half)
    assert run_recipe(small(OPEN_ENDED), tmp_path / "copy", resume=True)["rounds"] == 2


@pytest.mark.run
def test_the_offline_comparison_goes_with_a_copy(tmp_path: Path) -> None:
    config = small("offline.compare_rounds=1", rounds=1)
    first = run_recipe(config, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    take_new_identity(config, tmp_path / "copy")
    again = run_recipe(config, tmp_path / "copy", resume=True)
    assert (again["gap_offline"], again["gap_last"]) == (first["gap_offline"], first["gap_last"])
    engine = open_database(tmp_path / "copy" / JOURNAL)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
        assert len(connection.exec_driver_sql("SELECT id FROM run").all()) == 2
    engine.dispose()


@pytest.mark.run
def test_every_command_takes_a_renamed_copy(half: Path, tmp_path: Path) -> None:
    run_recipe(small(OPEN_ENDED), half, resume=True)
    copy = Path(shutil.copytree(half, tmp_path / "other name"))
    assert command("report", copy) == 0
    assert command("evaluate", copy) == 0
    assert command("release", copy, "1", "--force") == 0
    assert command("rollback", copy) == 0
    assert command("annotate", "--run", copy, "--add", "ana") == 0
    assert command("annotations", "export", "--run", copy, "--out", tmp_path / "said.jsonl") == 0
    assert command("serve", copy, "--add-key", "kim") == 0
    assert command("data", "convert", copy, "--out", tmp_path / "pairs.jsonl") == 0


@pytest.mark.run
def test_commands_that_read_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    run_recipe(small(), run_dir)
    for path in (run_dir, *run_dir.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    before = tree(run_dir)
    assert command("report", run_dir) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")
    assert command("report", run_dir, "--out", tmp_path / "page.html") == 0
    assert command("evaluate", run_dir) == 0
    assert command("release", run_dir) == 0
    assert tree(run_dir) == before
    for path in (run_dir, *run_dir.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)


@pytest.mark.run
def test_commands_that_fail_change_nothing(half: Path, tmp_path: Path) -> None:
    before = tree(half)
    resume = ("train", "tabular", *SMALL, "--run", half, "--resume")
    assert command(*resume, OPEN_ENDED, "rounds=2", "seed=9") == 2
    assert command(*resume, OPEN_ENDED, "rounds=1") == 2
    assert command("release", half, "7") == 2
    assert tree(half) == before
    assert (
        command("train", "tabular", "dual.rho=null", f"world.path={tmp_path / 'none.json'}", "--run", tmp_path / "n")
        == 2
    )
    assert not (tmp_path / "n").exists()


@pytest.mark.run
def test_a_finished_run_is_given_more_rounds_and_equals_one_that_had_them_from_the_start(tmp_path: Path) -> None:
    run_recipe(small(OPEN_ENDED, rounds=1), tmp_path / "run")
    grown = finish(small(OPEN_ENDED, rounds=2), tmp_path / "run", resume=True)
    assert grown == finish(small(OPEN_ENDED, rounds=2), tmp_path / "whole")
    with open_folder(tmp_path / "run") as journal:
        assert journal.recipe["rounds"] == 2
    with pytest.raises(UserError, match="more rounds, not fewer"):
        run_recipe(small(OPEN_ENDED, rounds=1), tmp_path / "run", resume=True)


@pytest.mark.run
@pytest.mark.parametrize("kind", ["projected", "newton"])
def test_a_step_that_is_fixed_for_its_rounds_takes_no_more(tmp_path: Path, kind: str) -> None:
    rule = f"dual.rule={{kind: {kind}}}"
    run_recipe(small(rule, rounds=1), tmp_path / "run")
    before = tree(tmp_path / "run")
    with pytest.raises(UserError, match=f"cannot be given more than its 1 rounds: dual.rule={kind} fixes its step"):
        run_recipe(small(rule, rounds=2), tmp_path / "run", resume=True)
    assert tree(tmp_path / "run") == before


@pytest.mark.run
def test_a_shared_database_knows_a_run_by_its_identity(tmp_path: Path) -> None:
    """Two folders of one name in one database are two runs, and a renamed folder is still its own."""
    config = small(f"journal=sqlite:///{tmp_path / 'all.sqlite'}", rounds=1)
    folders = [tmp_path / "a" / "demo", tmp_path / "b" / "demo"]
    for folder in folders:
        run_recipe(config, folder)
        assert (folder / IDENTITY).is_file()
    moved = folders[0].rename(tmp_path / "moved")
    with open_folder(moved, config.journal) as one, open_folder(folders[1], config.journal) as other:
        assert one.run_id != other.run_id
    assert run_recipe(config, moved, resume=True)["rounds"] == 1
    with pytest.raises(UserError, match="holds a run already"):
        run_recipe(config, moved)


@pytest.mark.run
def test_a_result_says_where_it_comes_from(tmp_path: Path) -> None:
    run_recipe(small(rounds=1), tmp_path / "run")
    provenance = json.loads((tmp_path / "run" / RESULT).read_text())["provenance"]
    assert provenance["begun"] <= provenance["date"] <= provenance["finished"]
    assert provenance["run"] == run_of(tmp_path / "run")
    assert len(provenance["model"]["sha256"]) == 64
    assert set(provenance["machine"]) == {"cpu", "cores", "memory_bytes", "gpus", "os"}
    assert {"version", "commit", "command"} <= set(provenance)
    assert story(tmp_path / "run")["versions"][0][0].sha256 == provenance["model"]["sha256"]


@pytest.mark.parametrize("family", [None, {"kind": "first"}])
def test_a_run_on_the_first_text_world_is_refused_in_one_sentence(family: dict[str, str] | None) -> None:
    stored = load("text-world").model_dump(mode="json")
    stored["world"]["family"] = family
    with pytest.raises(UserError, match="on the first text world, which this version has not"):
        Config.of_run(stored)
