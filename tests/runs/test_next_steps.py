"""The commands that `pddpo status`, `train`, `certify` and `release` print as next steps run as they are printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pddpo_ray.cli.main import main
from pddpo_ray.driver.run import RoundFinished, run_recipe
from pddpo_ray.errors import StoppedError
from tests.runs.test_outcome import BROKEN, KEPT
from tests.support.served_run import SAFE, UNSAFE, make_run
from tests.unit.loop.small_run import small

pytestmark = pytest.mark.run

ANSWERS = {0, 5, 6}
"""Exit codes of a command that did what it says: done, a policy undecided, a policy rejected."""


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    output = capsys.readouterr()
    assert (ended.value.code or 0) in ANSWERS, output.err
    return output.out


def next_commands(out: str) -> list[list[str]]:
    """Commands in backticks from the line `next` on."""
    assert re.search(r"^next ", out, re.M), out
    text = re.split(r"^next ", out, maxsplit=1, flags=re.M)[1]
    return [shlex.split(command)[1:] for command in re.findall(r"`(pddpo [^`]+)`", text)]


def test_next_steps_of_a_run_without_a_certificate_run_as_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "a run"
    run_recipe(small(*BROKEN), run)
    first = next_commands(said(capsys, "status", str(run)))
    assert [words[0] for words in first] == ["certify", "release"]
    certified = said(capsys, *first[0])
    assert [words[0] for words in next_commands(certified)] == ["certify", "release"], "tested now, with more draws"
    again, by_hand = next_commands(certified)
    assert "--budget" in again
    said(capsys, *again)
    (report,) = next_commands(said(capsys, *by_hand))
    assert report == ["report", str(run)]
    said(capsys, *report)
    assert next_commands(said(capsys, "status", str(run))) == [report]


def test_a_stopped_run_is_resumed_by_the_command_that_status_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"

    def stop_after_the_first_round(event: object) -> None:
        if isinstance(event, RoundFinished):
            raise StoppedError("stopped")

    with pytest.raises(StoppedError):
        run_recipe(small(), run, progress=stop_after_the_first_round)
    (resume,) = next_commands(said(capsys, "status", str(run)))
    assert resume == ["train", "--run", str(run), "--resume"]
    assert f"{run}: continues" not in said(capsys, *resume)
    assert "rounds   2 of 2 done" in said(capsys, "status", str(run))


def test_a_certified_run_is_tested_by_hand_and_its_page_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run_recipe(small(*KEPT, "certificate.certify=never", rounds=1), run)
    (certify, _) = next_commands(said(capsys, "status", str(run)))
    (report,) = next_commands(said(capsys, *certify))
    said(capsys, *report)


def test_a_released_language_model_is_asked_and_exported_by_the_commands_that_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_run(tmp_path / "demo", (SAFE, UNSAFE))
    made.journal.close()
    monkeypatch.setenv("USER", "ana")
    released = said(capsys, "release", str(made.folder), "2", "--force")
    chat, serve, export = next_commands(released)
    assert said(capsys, *chat, "--prompt", "word1 word2").strip()
    monkeypatch.chdir(tmp_path)
    said(capsys, *export)
    assert (tmp_path / "DIR" / "config.json").is_file()
    assert serve == ["serve", str(made.folder)], "tests/serve starts it"


def test_a_recipe_is_left_out_only_with_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["train", "rounds=2", "--run", str(tmp_path / "new")])
    assert "only --resume --run DIR needs none" in capsys.readouterr().err
