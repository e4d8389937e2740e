"""Which file systems can hold a SQLite journal: those of one machine.

SQLite's write-ahead log needs memory that all its readers and writers share, and locks that hold (sqlite.org/wal.html,
"All processes using a database must be on the same host computer"). A network file system gives neither: two hosts that
write the same file break it without a message.
"""

from __future__ import annotations

from pathlib import Path

import psutil

from pddpo_ray.errors import UserError

NETWORK = frozenset(
    {
        *("nfs", "nfs3", "nfs4", "efs", "cifs", "smb", "smb2", "smb3", "smbfs", "afs", "ncpfs"),
        *("lustre", "ceph", "glusterfs", "beegfs", "gpfs", "ocfs2", "gfs2", "pvfs2", "orangefs", "wekafs"),
    }
)
"""Kinds of mounts that several machines write to. EFS and Filestore mount as nfs4 and nfs."""
LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs"})
"""FUSE in front of a disk of this machine: NTFS, the root of rootless containers."""


def mount_of(path: Path) -> tuple[str, Path] | None:
    """File system and mount point that hold an absolute path; None if unknown.

    The longest mount point wins, and of those mounted over each other the last.
    """
    mounts = [(mount.fstype, Path(mount.mountpoint)) for mount in psutil.disk_partitions(all=True)]
    holding = [(len(point.parts), number) for number, (_, point) in enumerate(mounts) if path.is_relative_to(point)]
    return mounts[max(holding)[1]] if holding else None


def demand_local(database: Path) -> None:
    """Raises UserError if a SQLite database would lie on a network file system."""
    mount = mount_of(database.resolve())
    if mount is None:
        return
    kind, point = mount
    if kind in NETWORK or (kind.startswith("fuse") and kind not in LOCAL_FUSE):
        raise UserError(
            f"{database} would lie on {point}, a network file system ({kind}) on which SQLite loses data: keep the"
            " journal in PostgreSQL (journal=postgresql://user@host/name, the run folder may stay), or give a run"
            " folder on a disk of this machine"
        )
