"""The steps of the Containerfile in the root filesystem of a fresh Debian, as root and as the user that they name.

Stand-ins: Debian's own Python 3.11 for the base image's, and pip finds the lock's packages beside the new environment
(`test_set_up.py` installs the lock for good). No image is built, and nothing of ENGINE=gpu is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.jobs.submit import files_to_send

ROOT = Path(__file__).parents[3]
CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"
PURELIB = Path(sysconfig.get_path("purelib"))
BESIDE = "/beside"
OURS = ("pddpo", "__editable__", "_distutils_hack", "distutils-precedence")
pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="another root filesystem needs root"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Path]:
    """A minimal Debian 12 with Python 3.11."""
    system = tmp_path / "system"
    include = "--include=ca-certificates,python3.11,python3.11-dev,python3.11-venv"
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", include, "bookworm", str(system)]
    made = subprocess.run([*command, "http://deb.debian.org/debian"], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no Debian could be fetched: {made.stderr.strip().splitlines()[-1]}")
    shutil.copyfile("/etc/resolv.conf", system / "etc" / "resolv.conf")
    beside = system / BESIDE[1:]
    beside.mkdir()
    for entry in PURELIB.iterdir():
        if not entry.name.lower().startswith(OURS):
            (beside / entry.name).symlink_to(entry)
    (system / str(PURELIB)[1:]).mkdir(parents=True)
    yield system
    shutil.rmtree(system)


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"(?m)^#.*\n", "", CONTAINERFILE.read_text(encoding="utf-8")).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


class Image:
    """What a builder keeps from one instruction to the next."""

    def __init__(self, system: Path) -> None:
        self._system = system
        self.user, self.folder = "0", "/"
        self.variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}

    def run(self, command: str, **more: str) -> str:
        """In a mount namespace of its own, so that nothing stays mounted. -> what it printed"""
        inside = f"cd {self.folder} && {command}"
        mounts = f"mount -t proc proc {self._system}/proc && mount --bind {PURELIB} {self._system}{PURELIB}"
        mounts += f" && mount --bind /dev {self._system}/dev"
        chroot = f'exec chroot --userspec={self.user}:{self.user} {self._system} /bin/sh -c "$INSIDE"'
        done = subprocess.run(
            ["unshare", "--mount", "/bin/sh", "-c", f"{mounts} && {chroot}"],
            env={**self.variables, **more, "INSIDE": inside}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout[-1000:], done.stderr[-2000:])
        return done.stdout

    def execute(self, word: str, rest: str) -> None:
        if word == "ARG":
            name, _, default = rest.partition("=")
            self.variables[name] = "cpu" if name == "ENGINE" else default
        elif word == "USER":
            self.user, self.variables["HOME"] = rest, "/home/ray"
        elif word == "WORKDIR":
            self.folder = rest
            self._inside(rest).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            assert rest == "--chown=1000 . ."
            self._copy()
        elif word == "ENV":
            for name, value in re.findall(r"(\w+)=(\S+)", rest):
                self.variables[name] = value.replace("$PATH", self.variables["PATH"])
        elif word == "RUN":
            self.run(rest, PYTHONPATH=BESIDE)
        else:
            assert word in ("FROM", "CMD"), word

    def _inside(self, path: str) -> Path:
        return self._system / path[1:]

    def _copy(self) -> None:
        for file in files_to_send(ROOT):
            target = self._inside(self.folder) / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, target)
        # A folder that WORKDIR had to make would stay root's: --chown is for what is copied.
        for path in self._inside(self.folder).rglob("*"):
            os.chown(path, 1000, 1000, follow_symlinks=False)


def test_every_step_of_the_image_runs_in_a_clean_root_filesystem(system: Path) -> None:
    image = Image(system)
    for word, rest in instructions():
        image.execute(word, rest)
    assert image.run("id -u") == "1000\n"
    assert image.run("pddpo --version", PYTHONPATH=BESIDE).startswith("pddpo ")
    assert image.run("command -v pddpo") == "/home/ray/venv/bin/pddpo\n"
    assert image.run("command -v wget && command -v g++ && command -v git && command -v rsync").count("\n") == 4
    last = instructions()[-1]
    assert last[0] == "CMD"
    assert "Usage: pddpo" in image.run(" ".join(re.findall(r'"([^"]+)"', last[1])), PYTHONPATH=BESIDE)
