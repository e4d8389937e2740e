"""Every set-up command of the `ray up` files, executed in a clean home as Ray's own shell would.

In the first test pip finds the lock's packages beside the new environment and downloads none. Stand-ins: a `mount` that
mounts memory in place of a provider's share, and `sudo`, which root lacks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy.jobs.submit import files_to_send

ROOT = Path(__file__).parents[3]
CLUSTERS = [ROOT / "cluster.yaml", *sorted((ROOT / "deploy" / "cluster").glob("*.yaml"))]
SHIMS = {
    "sudo": 'exec "$@"',
    "mount.nfs": "exit 0",
    # mount -t KIND -o OPTIONS SOURCE POINT
    "mount": f'exec {shutil.which("mount")} -t tmpfs -o size=1m,uid=0,mode=755 tmpfs "$6"',
}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home with what `file_mounts` brings, and a share that is mounted nowhere yet."""
    home = tmp_path / "home"
    for file in files_to_send(ROOT):
        target = home / "pddpo_ray" / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, target)
    for secret in (home / ".ray" / "auth_token", home / ".pgpass"):
        secret.parent.mkdir(exist_ok=True)
        secret.write_text("secret")
        secret.chmod(0o644)
    (tmp_path / "bin").mkdir()
    for name, body in SHIMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    yield home
    if os.path.ismount(tmp_path / "share"):
        subprocess.run(["umount", "--lazy", str(tmp_path / "share")], check=True)


def environment(home: Path, **more: str) -> dict[str, str]:
    path = f"{home.parent / 'bin'}:{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "http", "HTTP"))}
    return {**kept, "HOME": str(home), "PATH": path, "POINT": str(home.parent / "share"), "ENGINE": "cpu", **more}


def set_up(path: Path, home: Path, **more: str) -> None:
    """The commands of a cluster file in their order."""
    for command in yaml.safe_load(path.read_text(encoding="utf-8"))["setup_commands"]:
        done = subprocess.run(
            ["bash", "-c", command],
            env=environment(home, **more), cwd=home, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout[-500:], done.stderr[-2000:])


def may_mount(folder: Path) -> bool:
    """Whether this process may mount a file system."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True, check=False)
    if mounted.returncode == 0:
        subprocess.run(["umount", str(folder)], check=True)
    return mounted.returncode == 0


@pytest.mark.full
def test_the_set_up_commands_of_every_provider_run_in_a_clean_home(home: Path, tmp_path: Path) -> None:
    if not may_mount(tmp_path / "probe"):
        pytest.skip("this process may not mount a file system")
    # What is installed here, but for this package itself: pip looks at every requirement and finds it satisfied.
    beside = tmp_path / "beside"
    beside.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.lower().startswith(("pddpo", "__editable__", "_distutils_hack", "distutils-precedence")):
            (beside / entry.name).symlink_to(entry)
    for path in CLUSTERS:
        set_up(path, home, PYTHONPATH=str(beside))
        assert {(home / name).stat().st_mode & 0o777 for name in (".ray/auth_token", ".pgpass")} == {0o600}
        assert os.path.ismount(tmp_path / "share"), "on machines of one's own it is there already"
    assert (home / ".bashrc").read_text().count("RAY_AUTH_MODE=token") == 1, "however often it is set up"
    said = subprocess.run(
        [home / "venv" / "bin" / "pddpo", "--version"],
        env=environment(home, PYTHONPATH=str(beside)), capture_output=True, text=True, check=True, cwd=home,
    )  # fmt: skip
    assert said.stdout.startswith("pddpo ")


@pytest.mark.run
def test_a_node_installs_what_make_setup_installs(home: Path) -> None:
    """The same calls of pip in the same order, which `make setup` has done for good before any test."""
    (python := home / "venv" / "bin" / "python").parent.mkdir(parents=True)
    python.write_text(f'#!/bin/bash\necho "$@" >>{home}/asked\n')
    python.chmod(0o755)
    subprocess.run(["bash", "pddpo_ray/deploy/install.sh"], env=environment(home), cwd=home, check=True)
    planned = subprocess.run(
        ["make", "--dry-run", "--always-make", "PYTHON=python3.11", "setup"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    made = [line.split("/python ", 1)[1].split() for line in planned.splitlines() if " -m pip " in line]
    assert [line.split() for line in (home / "asked").read_text().splitlines()] == made
    assert len(made) == 3


@pytest.mark.run
def test_a_share_that_is_not_mounted_is_said_so(home: Path, tmp_path: Path) -> None:
    command = ["bash", str(ROOT / "deploy" / "cluster" / "share.sh")]
    missing = subprocess.run(command, env=environment(home), capture_output=True, text=True, check=False)
    said = f"{tmp_path / 'share'} is not mounted: mount the share of all nodes there first\n"
    assert (missing.returncode, missing.stderr) == (1, said)


@pytest.mark.run
def test_a_fresh_share_that_belongs_to_root_is_given_to_an_ordinary_user() -> None:
    """A real file system of root's, a real user without rights, and a `sudo` that asks this process."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount what belongs to root")
    folder = Path(tempfile.mkdtemp(prefix="share-", dir="/tmp"))  # pytest's own folders are closed to other users
    folder.chmod(0o777)
    point, asked = folder / "share", folder / "asked"
    point.mkdir()
    (folder / "sudo").write_text(
        f'#!/bin/bash\necho "$@" >{asked}.new; mv {asked}.new {asked}; while [ -e {asked} ]; do sleep 0.05; done\n'
    )
    (folder / "sudo").chmod(0o755)
    shutil.copy(ROOT / "deploy" / "cluster" / "share.sh", folder)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(point)], check=False).returncode != 0:
        shutil.rmtree(folder)
        pytest.skip("this process may not mount a file system")
    try:
        user = subprocess.Popen(
            ["bash", str(folder / "share.sh")],
            env={"POINT": str(point), "PATH": f"{folder}:/usr/bin:/bin"},
            user=65534, group=65534, extra_groups=[], cwd="/",
        )  # fmt: skip
        while user.poll() is None:
            if asked.exists():
                command = asked.read_text().split()
                assert command == ["chown", "65534:65534", str(point)]
                subprocess.run(command, check=True)
                asked.unlink()
            time.sleep(0.05)
        assert user.returncode == 0
        assert point.stat().st_uid == 65534
        assert list(point.iterdir()) == []
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)
        shutil.rmtree(folder)
