"""A disk that is full in the middle of a run: one message, and after making room the run that nobody disturbed."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from pddpo_ray.cli.main import main
from pddpo_ray.config import load
from pddpo_ray.driver.run import Event, PhaseChanged, run_recipe
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.storage.whole_files import explain_disk
from tests.support.traces import trace

ROOT = Path(__file__).parents[3]
SMALL = [
    "rounds=6",
    "feedback.responses=32",
    "limits.cost.labels_each=8",
    "offline.pairs=100",
    "offline.compare_rounds=0",
]
SHORT = [*SMALL, "rounds=1"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 16 MiB, where this process may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)):
        pytest.skip("this process may not mount a file system")
    yield place
    # lazily: a test that failed may still hold a file there
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def mount(*arguments: str) -> bool:
    try:
        return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def fill_up(place: Path) -> None:
    """Leaves no byte free."""
    with (place / "ballast").open("wb", buffering=0) as file:
        for size in (2**16, 2**10, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


@pytest.mark.full
@pytest.mark.run
def test_a_full_disk_is_one_message_and_the_run_goes_on_when_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    config = load("tabular", SMALL)
    run_recipe(config, tmp_path / "run")

    def ballast(event: Event) -> None:
        if isinstance(event, PhaseChanged) and (event.event.round, event.event.phase) == (3, "sample"):
            fill_up(small_disk)

    with pytest.raises(RunError, match=r"no space is left for .*disk/run: make room and add --resume"):
        run_recipe(config, small_disk / "run", progress=ballast)
    (small_disk / "ballast").unlink()
    run_recipe(config, small_disk / "run", resume=True)
    assert trace(small_disk / "run") == trace(tmp_path / "run")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OperationalError("INSERT", {}, Exception("database or disk is full")),
    ],
)
def test_whoever_says_that_a_disk_is_full_is_understood(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no space is left"), explain_disk(tmp_path):
        raise error


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    for error in (FileNotFoundError("x"), OperationalError("INSERT", {}, Exception("database is locked"))):
        with pytest.raises(type(error)), explain_disk(tmp_path):
            raise error


def one_line(capsys: pytest.CaptureFixture[str], run_dir: Path, *more: str) -> tuple[int, str]:
    """Exit code of `pddpo train` and the last thing that it said on stderr."""
    with pytest.raises(SystemExit) as ended:
        main(["train", "tabular", *SHORT, "report.html=false", "--run", str(run_dir), *more])
    assert isinstance(ended.value.code, int)
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) <= 2, lines  # that the run begins or goes on, and the message
    return ended.value.code, lines[-1]


@pytest.mark.run
def test_to_resume_on_a_full_disk_is_one_line(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where no room is left for SQLite's own index, of which it says "disk I/O error"."""
    run_recipe(load("tabular", SHORT), small_disk / "run")
    fill_up(small_disk)
    code, said = one_line(capsys, small_disk / "run", "--resume")
    assert code == 1
    assert f"no space is left for {small_disk / 'run'}: make room" in said


FULL_AT_THE_REPORT = """
import sys
from pathlib import Path
from pddpo_ray.cli.main import main
from tests.unit.cluster.test_disk import fill_up

disk, *arguments = sys.argv[1:]
sys.addaudithook(lambda what, told: fill_up(Path(disk)) if what == "open" and ".report.html." in str(told[0]) else None)
main(arguments)
"""
"""`pddpo` in a process of its own, whose disk is full once it opens the file of the report."""


@pytest.mark.full
@pytest.mark.slow
def test_a_disk_that_is_full_when_the_report_is_written_is_one_line(small_disk: Path) -> None:
    run_dir = small_disk / "run"
    command = [sys.executable, "-c", FULL_AT_THE_REPORT, str(small_disk), "train", "tabular", *SHORT]
    ended = subprocess.run([*command, "--run", str(run_dir)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"no space is left for {run_dir}: make room and add --resume" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    assert (run_dir / "result.json").exists()
    (small_disk / "ballast").unlink()
    with pytest.raises(SystemExit) as again:
        main(["train", "tabular", *SHORT, "--run", str(run_dir), "--resume"])
    assert again.value.code == 0
    assert (run_dir / "report.html").exists()


@pytest.mark.run
def test_a_run_folder_that_cannot_be_written_is_one_line(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_recipe(load("tabular", SHORT), small_disk / "run")
    assert mount("-o", "remount,ro", str(small_disk))
    for more, problem in (
        (["--resume"], "cannot be written by this user"),
        ([], "cannot be made: Read-only file system"),
    ):
        code, said = one_line(capsys, small_disk / ("run" if more else "another"), *more)
        assert (code, problem in said) == (2, True), said


@pytest.mark.run
def test_status_stop_and_logs_need_no_right_to_write(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = small_disk / "run"
    with pytest.raises(SystemExit):
        main(["train", "tabular", *SHORT, "report.html=false", "--run", str(run_dir)])
    assert mount("-o", "remount,ro", str(small_disk))
    for verb, expected in (("status", "(finished)"), ("stop", "no process drives the run"), ("logs", "run: finished")):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([verb, str(run_dir)])
        out, err = capsys.readouterr()
        assert (ended.value.code, err) == (0, "")
        assert expected in out


def test_what_may_not_be_written_elsewhere_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), explain_disk(tmp_path / "run"):
        raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere/token")
    with pytest.raises(UserError, match="cannot be written"), explain_disk(tmp_path / "run"):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "run" / "artifacts"))
