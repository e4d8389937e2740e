"""Which file systems can hold a SQLite journal: those of one machine.

SQLite's write-ahead log needs memory that all its readers and writers share, and locks that hold (sqlite.org/wal.html,
"All processes using a database must be on the same host computer"). A network file system gives neither: two hosts that
write the same file break it without a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pddpo_ray.errors import UserError

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    {
        *("nfs", "nfs3", "nfs4", "efs", "cifs", "smb", "smb2", "smb3", "smbfs", "afs", "ncpfs"),
        *("lustre", "ceph", "glusterfs", "beegfs", "gpfs", "ocfs2", "gfs2", "pvfs2", "orangefs", "wekafs"),
    }
)
"""Kinds of mounts that several machines write to. EFS and Filestore mount as nfs4 and nfs."""
LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs"})
"""FUSE in front of a disk of this machine: NTFS, the root of rootless containers."""


def kind_of(path: Path, mounts: Iterable[str]) -> tuple[str, Path] | None:
    """File system and mount point that hold an absolute path, from the lines of mountinfo (proc(5)); None if none does.

    The longest mount point wins, and of those mounted over each other the last.
    """
    found: tuple[str, Path] | None = None
    for line in mounts:
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]))
        if path.is_relative_to(point) and (found is None or len(point.parts) >= len(found[1].parts)):
            found = after.split()[0], point
    return found


def demand_local(database: Path) -> None:
    """Raises UserError if a SQLite database would lie on a network file system. Linux alone tells which it is."""
    if not MOUNTS.exists():
        return
    found = kind_of(database.resolve(), MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines())
    if found is None:
        return
    kind, point = found
    if kind in NETWORK or (kind.startswith("fuse") and kind not in LOCAL_FUSE):
        raise UserError(
            f"{database} would lie on {point}, a network file system ({kind}) on which SQLite loses data: keep the"
            " journal in PostgreSQL (journal=postgresql://user@host/name, the run folder may stay), or give a run"
            " folder on a disk of this machine"
        )
