"""A PostgreSQL server of this machine for the duration of a test session."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ports import free_port


def program(name: str) -> str:
    """Path of one of PostgreSQL's programs; skips the test where it is not installed."""
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(debian[-1]) if debian else None)
    if found is None:
        pytest.skip(f"PostgreSQL is not installed: there is no {name}")
    return found


def owner() -> str | None:
    """PostgreSQL refuses to run as root; then it runs as another user of this machine."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


@contextmanager
def postgres_server() -> Iterator[str]:
    """Starts an empty server on a free port and yields its URL; everything is gone afterwards."""
    initdb, postgres = program("initdb"), program("postgres")
    user = owner()
    # Below /tmp itself: a socket's path may be short only, and pytest's folders are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    if user is not None:
        shutil.chown(folder, user)
    port = free_port()
    data = folder / "data"
    subprocess.run(
        [initdb, "-D", str(data), "-U", "pddpo", "--auth=trust", "--encoding=UTF8"],
        user=user, cwd=folder, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    command = [postgres, "-D", str(data), "-p", str(port), "-k", str(folder), "-h", "127.0.0.1", "-c", "fsync=off"]
    server = subprocess.Popen(command, user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(port)
        yield f"postgresql://pddpo@127.0.0.1:{port}/postgres"
    finally:
        server.terminate()
        server.wait(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_ready(port: int, patience_s: float = 60.0) -> None:
    """A server that starts refuses connections for a moment."""
    import psycopg

    deadline = time.monotonic() + patience_s
    while True:
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="pddpo", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
