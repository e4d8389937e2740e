"""A SQLite journal on a file system of several machines is refused before a file is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from pddpo_ray.errors import UserError
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.filesystems import mount_of
from tests.support.mounts import mounted

MOUNTS = (
    ("/", "ext4"),
    ("/mnt/pddpo", "nfs4"),
    ("/mnt/pddpo/scratch", "xfs"),
    ("/mnt/my share", "cifs"),
    ("/mnt/bucket", "fuse.gcsfuse"),
    ("/mnt/windows", "fuseblk"),
    ("/mnt/over", "ext4"),
    ("/mnt/over", "nfs"),
)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/runs", "ext4"),
        ("/mnt/pddpo/runs/first/journal.sqlite", "nfs4"),
        ("/mnt/pddpo/scratch/runs", "xfs"),
        ("/mnt/pddpo-old/runs", "ext4"),
        ("/mnt/my share/runs", "cifs"),
        ("/mnt/bucket/runs", "fuse.gcsfuse"),
        ("/mnt/windows/runs", "fuseblk"),
        ("/mnt/over/runs", "nfs"),
    ],
)
def test_the_longest_and_newest_mount_holds_a_path(path: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, *MOUNTS)
    found = mount_of(Path(path))
    assert found is not None
    assert found[0] == kind


def test_this_machines_own_mounts_are_understood(tmp_path: Path) -> None:
    found = mount_of(tmp_path)
    assert found is not None
    assert tmp_path.is_relative_to(found[1])


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse", "lustre"])
def test_a_journal_on_a_network_share_is_refused_and_nothing_is_made(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(monkeypatch, ("/", "ext4"), (str(tmp_path), kind))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "runs")
    for run in (tmp_path / "runs", link):
        with pytest.raises(UserError, match=rf"network file system \({kind}\).*journal=postgresql://user@host/name"):
            open_database(run / "journal.sqlite")
    assert not (tmp_path / "runs").exists()


def test_an_overlay_of_a_container_is_a_disk_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, ("/", "fuse.fuse-overlayfs"))
    open_database(tmp_path / "journal.sqlite").dispose()
