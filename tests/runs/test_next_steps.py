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
from tests.unit.loop.small_run import SMALL, small

pytestmark = pytest.mark.run

ANSWERS = {0, 5, 6}
"""Exit codes of a command that did what it says: done, a policy undecided, a policy rejected."""


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int | None = None) -> str:
    """What a command prints; it ends with `code`, without one with an answer."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    output = capsys.readouterr()
    assert (ended.value.code or 0) in (ANSWERS if code is None else {code}), output.err
    return output.out


def main_or_end(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code


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
    certified = said(capsys, *first[0], "--limit", "cost=1.9")
    assert "Certified: cost" in certified
    assert "outcome  No policy is certified, and none is released: under the recipe's limits policy-2 is" in certified
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


def test_a_run_that_can_have_more_rounds_gets_them_by_the_command_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "a run"
    said(capsys, "train", "tabular", *SMALL, "rounds=1", "dual.rule.kind=anytime", "--run", str(run))
    certify, more, by_hand = next_commands(said(capsys, "status", str(run)))
    assert (certify[0], by_hand[0], more[-1]) == ("certify", "release", "rounds=2")
    said(capsys, *more)
    assert "rounds   2 of 2 done" in said(capsys, "status", str(run))


def test_a_run_that_waits_for_people_names_commands_that_run_while_it_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "a run"
    asked = ["feedback.kind=people", "people.park_after_s=0", "rounds=1"]
    said(capsys, "train", "tabular", *SMALL, *asked, "--run", str(run), code=3)
    out = said(capsys, "status", str(run))
    decide, resume = next_commands(out)
    assert "possible: --extend" in said(capsys, *decide)
    assert "labels" in said(capsys, *resume, code=3), "nobody has answered, so it parks again"
    waits, _ = re.split(r"^next ", out, flags=re.M)
    *accounts, page = (shlex.split(line)[1:] for line in re.findall(r"`(pddpo annotate [^`]+)`", waits))
    assert "NAME" in said(capsys, *accounts[0])
    told: list[str] = []

    def while_served(*_: object, **__: object) -> None:
        (more,) = re.findall(r"more people: `([^`]+)`", capsys.readouterr().out)
        told.append(said(capsys, *shlex.split(more)[1:]))

    monkeypatch.setattr("deploy.annotation.app.serve", while_served)
    main_or_end(page)
    assert "HANDLE" in told[0]


def test_a_file_of_questions_names_commands_that_run_while_it_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "my questions.jsonl"
    file.write_text('{"kind": "compare", "prompt": "Tea?", "first": "Yes, please.", "second": "No."}\n')
    told: list[str] = []

    def while_served(*_: object, **__: object) -> None:
        lines = re.findall(r"^(?:more people|labels): `([^`]+)`", capsys.readouterr().out, re.M)
        told.extend(said(capsys, *shlex.split(line)[1:]) for line in lines)

    monkeypatch.setattr("deploy.annotation.app.serve", while_served)
    main_or_end(["annotate", "--questions", str(file)])
    assert "HANDLE" in told[0]
    assert "none: there is no label yet" in told[1]


def test_the_example_of_limits_is_checked_by_the_command_that_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (check,) = next_commands(said(capsys, "limits", "example", str(tmp_path / "my limits")))
    assert "undecided" in said(capsys, *check)


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
