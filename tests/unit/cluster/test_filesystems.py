"""A SQLite journal on a file system of several machines is refused before a file is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from pddpo_ray.errors import UserError
from pddpo_ray.journal import filesystems
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.filesystems import kind_of

MOUNTS = r"""
27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 27 0:33 / /mnt/pddpo rw,relatime shared:9 - nfs4 fs-0123.efs.us-west-2.amazonaws.com:/ rw,vers=4.1,hard
41 27 0:34 / /mnt/pddpo/scratch rw master:3 propagate_from:2 - xfs /dev/sdb1 rw
42 27 0:35 / /mnt/my\040share rw - cifs //server/share rw
43 27 0:36 / /mnt/bucket rw - fuse.gcsfuse bucket rw
44 27 0:37 / /mnt/windows rw - fuseblk /dev/sdc1 rw
45 27 0:38 / /mnt/over rw - ext4 /dev/sdd1 rw
46 45 0:39 / /mnt/over rw - nfs server:/over rw
""".strip().splitlines()


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
def test_the_longest_and_newest_mount_holds_a_path(path: str, kind: str) -> None:
    found = kind_of(Path(path), MOUNTS)
    assert found is not None
    assert found[0] == kind


def test_this_machines_own_mounts_are_understood(tmp_path: Path) -> None:
    found = kind_of(tmp_path, filesystems.MOUNTS.read_text().splitlines())
    assert found is not None
    assert tmp_path.is_relative_to(found[1])


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse", "lustre"])
def test_a_journal_on_a_network_share_is_refused_and_nothing_is_made(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mountinfo").write_text(
        f"27 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 27 0:33 / {tmp_path} rw - {kind} x rw\n"
    )
    monkeypatch.setattr(filesystems, "MOUNTS", tmp_path / "mountinfo")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "runs")
    for run in (tmp_path / "runs", link):
        with pytest.raises(UserError, match=rf"network file system \({kind}\).*journal=postgresql://user@host/name"):
            open_database(run / "journal.sqlite")
    assert not (tmp_path / "runs").exists()


def test_an_overlay_of_a_container_is_a_disk_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text("27 1 8:1 / / rw - fuse.fuse-overlayfs fuse-overlayfs rw\n")
    monkeypatch.setattr(filesystems, "MOUNTS", tmp_path / "mountinfo")
    open_database(tmp_path / "journal.sqlite").dispose()
