"""What travels with a submitted job, what is refused before, and how a job's end is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import requests
import yaml

from deploy.jobs import submit
from deploy.jobs.commands import on_ray
from pddpo_ray.cli.main import main
from pddpo_ray.config import load
from pddpo_ray.errors import UserError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that is no checkout, with code, data, a run and a model."""
    files = {
        "pddpo_ray/__init__.py": "",
        "pddpo_ray/data/rows.py": "",
        "my/recipe.yaml": "",
        "data/pairs.jsonl": "x",
        "runs/first/journal.sqlite": "x",
        "model/model.safetensors": "x",
        "pddpo_ray/__pycache__/a.pyc": "x",
        "journal.sqlite-wal": "x",
    }
    for name, text in files.items():
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_text(text)
    return tmp_path / "code"


@pytest.mark.run
def test_code_travels_without_data_runs_models_and_caches(folder: Path, tmp_path: Path) -> None:
    package = submit.build_package(load("tabular"), folder, tmp_path / "staging")
    assert set(package.sizes) == {
        *("my/recipe.yaml", "pddpo_ray/__init__.py", "pddpo_ray/data/rows.py"),
        submit.RECIPE,
    }
    found = {path.relative_to(package.folder).as_posix() for path in package.folder.rglob("*") if path.is_file()}
    assert found == set(package.sizes)


@pytest.mark.run
def test_the_checkout_itself_is_small_enough_and_complete() -> None:
    files = {path.as_posix() for path in submit.files_to_send(ROOT)}
    assert {
        "pddpo_ray/__main__.py",
        "actors/launch.py",
        "deploy/jobs/submit.py",
        "lab/pddpo_lab/recipes/tabular.yaml",
    } <= files
    assert not any(name.startswith((".venv/", ".git/")) for name in files)
    assert sum((ROOT / name).stat().st_size for name in files) < submit.MAX_MIB * submit.MIB / 4


@pytest.mark.run
def test_the_recipe_travels_resolved(folder: Path, tmp_path: Path) -> None:
    config = on_ray("tabular", ["rounds=7", "limits.cost.at_most=0.25"])
    package = submit.build_package(config, folder, tmp_path / "staging")
    again = load(str(package.folder / submit.RECIPE))
    assert again == config
    assert again.digest() == config.digest()
    assert (again.rounds, again.cluster.mode) == (7, "ray")


def test_paths_that_only_the_cluster_has_are_not_looked_for_here() -> None:
    config = on_ray("text-world", ["model.reference=/mnt/models/alpaca-7b"])
    assert config.model.reference == "/mnt/models/alpaca-7b"
    with pytest.raises(UserError, match="does not exist"):
        load("text-world", ["model.reference=/mnt/models/alpaca-7b"])


@pytest.mark.run
def test_too_much_is_refused_with_the_names_of_the_biggest_files(folder: Path, tmp_path: Path) -> None:
    (folder / "weights.bin").write_bytes(b"0" * (2 * submit.MIB))
    with pytest.raises(UserError, match=r"is 2 MiB, at most 1 MiB travel .* weights\.bin \(2 MiB\)"):
        submit.build_package(load("tabular"), folder, tmp_path / "staging", max_mib=1)


def test_secrets_go_by_name_and_never_by_value() -> None:
    assert submit.environment(["OMP_NUM_THREADS=4"], ["HF_TOKEN", "PGPASSWORD"]) == {
        "PYTHONUNBUFFERED": "1",
        "RAY_JOB_STOP_WAIT_TIME_S": "60",
        "OMP_NUM_THREADS": "4",
        "PDDPO_SECRETS": "HF_TOKEN,PGPASSWORD",
    }
    for text in ("HF_TOKEN=abc", "OPENAI_API_KEY=abc", "DB_PASSWORD=abc"):
        with pytest.raises(UserError, match="--secret") as refusal:
            submit.environment([text], [])
        assert "abc" not in str(refusal.value)
    with pytest.raises(UserError, match="never a value") as refusal:
        submit.environment([], ["HF_TOKEN=abc"])
    assert "abc" not in str(refusal.value)


def test_a_relative_run_folder_is_refused() -> None:
    with pytest.raises(UserError, match="absolute path that every node sees"):
        submit.entrypoint(PurePosixPath("runs/first"), resume=False)
    command = submit.entrypoint(PurePosixPath("/mnt/my runs/a"), resume=True)
    assert command == "python -m pddpo_ray train pddpo-recipe.yaml --run '/mnt/my runs/a' --resume"


@dataclass
class Details:
    """As the Jobs API tells it."""

    status: str
    submission_id: str = "pddpo-mnt-runs-a-1"
    entrypoint: str = "python -m pddpo_ray train"
    driver_exit_code: int | None = None


@dataclass
class Jobs:
    """A Jobs API in memory."""

    jobs: list[Details] = field(default_factory=list)
    submitted: list[dict[str, Any]] = field(default_factory=list)

    def list_jobs(self) -> list[Details]:
        return self.jobs

    def submit_job(self, **request: Any) -> str:
        self.submitted.append(request)
        return str(request["submission_id"])

    def get_job_info(self, name: str) -> Details:
        return next(job for job in self.jobs if job.submission_id == name)

    async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
        yield "round 1\n"
        self.get_job_info(name).status = "FAILED"


RUN = PurePosixPath("/mnt/runs/a")
PACKAGE = submit.Package(Path("staged"), {submit.RECIPE: 10})


def test_a_run_that_is_still_going_is_attached_to_and_not_submitted_again() -> None:
    jobs = Jobs([Details("RUNNING")])
    assert submit.submit(jobs, PACKAGE, run=RUN).attached
    assert jobs.submitted == []


def test_a_run_that_ended_is_submitted_under_the_next_number() -> None:
    jobs = Jobs([Details("FAILED")])
    job = submit.submit(jobs, PACKAGE, run=RUN, resume=True, secrets=["HF_TOKEN"])
    assert (job.id, job.attached) == ("pddpo-mnt-runs-a-2", False)
    (request,) = jobs.submitted
    assert request["runtime_env"] == {
        "working_dir": "staged",
        "env_vars": {"PYTHONUNBUFFERED": "1", "RAY_JOB_STOP_WAIT_TIME_S": "60", "PDDPO_SECRETS": "HF_TOKEN"},
    }
    assert request["entrypoint"].endswith("--run /mnt/runs/a --resume")


def test_jobs_of_a_run_are_its_own_and_in_their_order() -> None:
    others = [Details("RUNNING", "pddpo-mnt-runs-a-b-1"), Details("RUNNING", "elsewhere")]
    jobs = Jobs([*others, *(Details("FAILED", f"pddpo-mnt-runs-a-{number}") for number in (10, 2, 1))])
    assert submit.jobs_of(jobs, RUN) == [f"pddpo-mnt-runs-a-{number}" for number in (1, 2, 10)]
    assert submit.going(jobs, RUN) is None
    again = submit.submit(jobs, PACKAGE, run=RUN, go_on=True)
    assert not again.attached
    assert jobs.submitted[0]["entrypoint"].endswith("--run /mnt/runs/a --go-on")


@pytest.mark.parametrize(("driver", "code"), [(2, 2), (3, 3), (4, 4), (None, 1), (-9, 1)])
def test_the_jobs_end_has_the_exit_code_of_its_run(driver: int | None, code: int) -> None:
    jobs = Jobs([Details("RUNNING", driver_exit_code=driver)])
    shown: list[str] = []
    assert submit.follow(jobs, "pddpo-mnt-runs-a-1", shown.append) == code
    assert shown == ["round 1\n"]
    assert submit.exit_code(Details("SUCCEEDED")) == 0
    assert submit.exit_code(Details("STOPPED")) == 143


@pytest.mark.run
def test_a_dry_run_says_what_would_travel(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["submit", "tabular", "--run", "/mnt/x", "--working-dir", str(folder), "--dry-run", "--json"])
    assert not end.value.code
    said = json.loads(capsys.readouterr().out)
    assert said["files"] == 4
    assert yaml.safe_load(said["entrypoint"]) == "python -m pddpo_ray train pddpo-recipe.yaml --run /mnt/x"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing", "--run", "/mnt/x"], "there is no recipe `nothing`"),
        (["tabular", "--run", "here"], "absolute path that every node sees"),
        (["tabular", "--run", "/mnt/x", "--env", "HF_TOKEN=1"], "--secret HF_TOKEN"),
        (["tabular", "--run", "/mnt/x", "--working-dir", "/nowhere"], "is not a folder"),
        (["tabular", "rounds=x", "--run", "/mnt/x"], "`rounds` is 'x'"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["submit", *arguments, "--dry-run"])
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "error", [ConnectionError, requests.exceptions.ConnectionError, requests.exceptions.Timeout, RuntimeError]
)
def test_a_head_that_is_away_is_waited_for_and_then_named(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's client raises what requests raises, whose errors are no ConnectionError of Python's."""
    now = [0.0]
    monkeypatch.setattr(submit.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(submit.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    class Away(Jobs):
        """Its head answers again after so many seconds."""

        def __init__(self, back_s: float) -> None:
            super().__init__([Details("RUNNING", driver_exit_code=3)])
            self.back_s = back_s

        def get_job_info(self, job: str) -> Details:
            if now[0] < self.back_s:
                raise error("nobody is there")
            return super().get_job_info(job)

    shown: list[str] = []
    assert submit.follow(Away(30), "pddpo-mnt-runs-a-1", shown.append) == 3
    assert shown == ["waiting up to 120 s for the cluster's head, which does not answer\n", "round 1\n"]
    with pytest.raises(UserError, match="has not answered for 120 s: the job pddpo-mnt-runs-a-1 may still run"):
        submit.follow(Away(10_000), "pddpo-mnt-runs-a-1", shown.append)


def test_a_log_that_breaks_off_is_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an error of any library; one of what shows the log is another matter."""
    monkeypatch.setattr(submit.time, "sleep", lambda seconds: None)
    errors = [type("ServerDisconnectedError", (Exception,), {})(), OSError("reset"), RuntimeError("closed")]

    class Broken(Jobs):
        async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
            if errors:
                raise errors.pop()
            async for text in super().tail_job_logs(name):
                yield text

    shown: list[str] = []
    assert submit.follow(Broken([Details("RUNNING", driver_exit_code=3)]), "pddpo-mnt-runs-a-1", shown.append) == 3
    assert shown == ["round 1\n"]

    def closed(text: str) -> None:
        raise BrokenPipeError(text)

    with pytest.raises(BrokenPipeError):
        submit.follow(Jobs([Details("RUNNING")]), "pddpo-mnt-runs-a-1", closed)
