"""A recipe as a job on a running Ray cluster: what travels, what is checked before, and its exit code.

    package = build_package(config, Path("."), staging)      # code without data and runs, and the resolved recipe
    job = submit(client, package, run=PurePosixPath("/mnt/pddpo/runs/first"), ...)
    code = follow(client, job.id, print)                      # 0 done ... 4 needs a decision, as `pddpo train` ends

The recipe travels resolved: what was checked here is what runs there. Secrets travel by name only, because anyone
who may list jobs can read a job's environment; their values must be in the nodes' own environment (or in mounted files)
and are looked for on every node before anything starts (`actors.session`).
"""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from pddpo_ray.config import Config, to_yaml
from pddpo_ray.errors import StoppedError, UserError

RECIPE = "pddpo-recipe.yaml"
"""The resolved recipe inside the package."""
TOP_LEFT_OUT = ("runs", "data", "artifacts", "build", "dist", "venv")
LEFT_OUT = (
    *(".git", ".venv", "__pycache__", "*.egg-info", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache"),
    *(".hypothesis", ".cache", "*.sqlite", "*.sqlite-*", "*.safetensors", "*.log"),
)
"""What no job needs from here, at the top and anywhere; data and models are on paths that the cluster sees."""
MIB = 2**20
MAX_MIB = 100
"""Ray refuses packages above some hundreds of MiB with an unclear error; code is far below this."""
SECRET_WORDS = re.compile(r"(?i)token|secret|passw|api_?key|credential")
STOP_S = 60
"""Seconds that a job has to end after it was told to; Ray's own three are too few to give engines back."""
AGAIN_S = 1.0
"""Between two tries to reach a head that does not answer."""
HEAD_GONE_S = 120
"""How long a head may be away; a restarted one takes about half a minute."""
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


@dataclass(frozen=True)
class Package:
    """A folder that holds exactly what travels."""

    folder: Path
    sizes: Mapping[str, int]

    @property
    def size(self) -> int:
        return sum(self.sizes.values())


@dataclass(frozen=True)
class Job:
    """A submitted job; `attached` if it was running already and nothing was submitted."""

    id: str
    entrypoint: str
    attached: bool = False


# --- what travels ----------------------------------------------------------------------------------------------------


def files_to_send(folder: Path) -> list[Path]:
    """Files below a folder, relative to it: those that git does not ignore, without what no job needs."""
    listing = ["git", "-C", str(folder), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        names = subprocess.run(listing, capture_output=True, check=True, text=True).stdout.split("\0")
        files = [Path(name) for name in names if name]
    except (OSError, subprocess.CalledProcessError):  # not a checkout
        files = [path.relative_to(folder) for path in folder.rglob("*")]
    return sorted(path for path in files if (folder / path).is_file() and not _is_left_out(path))


def _is_left_out(path: Path) -> bool:
    return path.parts[0] in TOP_LEFT_OUT or any(fnmatch(part, pattern) for part in path.parts for pattern in LEFT_OUT)


def build_package(config: Config, folder: Path, staging: Path, *, max_mib: float = MAX_MIB) -> Package:
    """Copies what travels into `staging`. Raises UserError that names the biggest files when it is too much."""
    if not folder.is_dir():
        raise UserError(f"--working-dir {folder} is not a folder; give the root of a checkout, or leave it out")
    files = files_to_send(folder)
    sizes = {path.as_posix(): (folder / path).stat().st_size for path in files}
    total = sum(sizes.values())
    if total > max_mib * MIB:
        biggest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        listing = ", ".join(f"{name} ({sizes[name] / MIB:.0f} MiB)" for name in biggest)
        raise UserError(
            f"{folder} is {total / MIB:.0f} MiB, at most {max_mib:g} MiB travel with a job; the biggest are {listing}: "
            "add them to .gitignore, or name a smaller folder with --working-dir"
        )
    for path in files:
        target = staging / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / path, target)
    (staging / RECIPE).write_text(to_yaml(config), encoding="utf-8")
    return Package(staging, {**sizes, RECIPE: (staging / RECIPE).stat().st_size})


def environment(variables: Sequence[str], secrets: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` pairs and names of secrets as the job's environment. Raises UserError for a secret by value."""
    result = {"PYTHONUNBUFFERED": "1", "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S)}
    for text in variables:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"--env {text}: write NAME=VALUE")
        if SECRET_WORDS.search(name):
            raise UserError(
                f"--env {name}: a job's environment can be read by anyone who may list jobs; put the value in the"
                f" nodes' environment and pass its name with --secret {name}"
            )
        result[name] = value
    for name in secrets:
        if not name.isidentifier():
            raise UserError("--secret takes the name of an environment variable, never a value")
    if secrets:
        result["PDDPO_SECRETS"] = ",".join(secrets)
    return result


def entrypoint(run: PurePosixPath, *, resume: bool, go_on: bool = False) -> str:
    """The job's command. Raises UserError unless the run folder is absolute: the job's own folder is a copy."""
    if not run.is_absolute():
        raise UserError(f"--run {run}: give an absolute path that every node sees; a job's own folder is a copy")
    command = ["python", "-m", "pddpo_ray", "train", RECIPE, "--run", str(run)]
    return shlex.join([*command, *(["--resume"] if resume else []), *(["--go-on"] if go_on else [])])


# --- the cluster -----------------------------------------------------------------------------------------------------


def connect(address: str) -> Any:
    """A client of the cluster's Jobs API. Raises UserError when nobody answers there or the token is refused."""
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
        client.list_jobs()
    except (AuthenticationError, OSError, RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        if "401" in text or "403" in text or "uthenticat" in text:
            advice = "it asks for a token: set RAY_AUTH_MODE=token and put the cluster's token into ~/.ray/auth_token"
            raise UserError(f"--address {address}: {advice}") from error
        raise UserError(f"--address {address}: no Ray cluster answers there ({text[:120]})") from error
    return client


def submit(
    client: Any,
    package: Package,
    *,
    run: PurePosixPath,
    resume: bool = False,
    go_on: bool = False,
    variables: Sequence[str] = (),
    secrets: Sequence[str] = (),
) -> Job:
    """Submit, or find the job of this run that is still going: two drivers would fight for one journal."""
    command = entrypoint(run, resume=resume, go_on=go_on)
    env_vars = environment(variables, secrets)
    if attached := going(client, run):
        return Job(attached, client.get_job_info(attached).entrypoint, attached=True)
    name = client.submit_job(
        entrypoint=command,
        submission_id=f"{submission_prefix(run)}{len(jobs_of(client, run)) + 1}",
        runtime_env={"working_dir": str(package.folder), "env_vars": env_vars},
        metadata={"pddpo_run": str(run)},
    )
    return Job(name, command)


def submission_prefix(run: PurePosixPath) -> str:
    """Submission ids of a run: the same folder gives the same name, for all who submit it."""
    return "pddpo-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", str(run).strip("/")) + "-"


def jobs_of(client: Any, run: PurePosixPath) -> list[str]:
    """Submission ids of a run that the cluster knows, oldest first."""
    prefix = submission_prefix(run)
    names = [job.submission_id or "" for job in client.list_jobs()]
    numbers = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return [f"{prefix}{number}" for number in sorted(map(int, filter(str.isdecimal, numbers)))]


def going(client: Any, run: PurePosixPath) -> str | None:
    """The job of a run that has not ended."""
    return next((name for name in jobs_of(client, run) if _status(client.get_job_info(name)) not in ENDED), None)


def ended_within(client: Any, job: str, wait_s: float) -> bool:
    """Waits until a job has ended, for a limited number of seconds."""
    deadline = time.monotonic() + wait_s
    while _status(client.get_job_info(job)) not in ENDED:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def follow(client: Any, job: str, show: Callable[[str], None]) -> int:
    """Shows the job's log until it ends. -> the exit code of its `pddpo train`

    Raises UserError when the head does not answer for `HEAD_GONE_S`.
    """

    async def tail() -> None:
        log = client.tail_job_logs(job)
        while True:
            try:
                text = await anext(log)
            except StopAsyncIteration:
                return
            except Exception:
                # Whatever Ray's client is made of: the log's connection may break while the job runs, and the
                # status below decides.
                time.sleep(AGAIN_S)
                return
            show(text)

    while _status(_details(client, job, show)) not in ENDED:
        asyncio.run(tail())
    return exit_code(_details(client, job, show))


def _details(client: Any, job: str, show: Callable[[str], None]) -> Any:
    """A job's details from the head, waiting for one that is away."""
    deadline, is_shown = time.monotonic() + HEAD_GONE_S, False
    while True:
        try:
            return client.get_job_info(job)
        except (OSError, RuntimeError) as error:  # those of requests are OSErrors
            if time.monotonic() > deadline:
                raise UserError(
                    f"the cluster's head has not answered for {HEAD_GONE_S} s: the job {job} may still run;"
                    " give the command again when the head is back"
                ) from error
            if not is_shown:
                show(f"waiting up to {HEAD_GONE_S} s for the cluster's head, which does not answer\n")
            is_shown = True
            time.sleep(AGAIN_S)


def exit_code(details: Any) -> int:
    """0 for a job that succeeded, 143 for one that was stopped, else its driver's own exit code, else 1."""
    if _status(details) in ("SUCCEEDED", "STOPPED"):
        return 0 if _status(details) == "SUCCEEDED" else StoppedError.exit_code
    code = details.driver_exit_code
    return code if isinstance(code, int) and code > 0 else 1


def _status(details: Any) -> str:
    return str(getattr(details.status, "value", details.status))
