"""Mounts in the place of this machine's."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest


def mounted(monkeypatch: pytest.MonkeyPatch, *mounts: tuple[str, str]) -> None:
    """From here on these are mounted, each a point with its file system."""
    known = [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: known)
