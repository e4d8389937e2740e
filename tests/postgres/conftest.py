"""A PostgreSQL server of its own for these tests; skipped with the reason where Debian's package is missing."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.support.ports import free_port


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


def _as_server_user(command: list[str]) -> list[str]:
    # PostgreSQL refuses to run as root; Debian's package brings a user for it.
    return ["runuser", "-u", "postgres", "--", *command] if os.geteuid() == 0 else command


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """URL of a running server, without a database name."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (Debian package postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="pddpo-postgres-"))
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    data = folder / "data"
    port = free_port()
    control = str(binaries / "pg_ctl")
    subprocess.run(
        _as_server_user([str(binaries / "initdb"), "-D", str(data), "-A", "trust", "-U", "tester"]),
        check=True, stdout=subprocess.DEVNULL, cwd="/",
    )  # fmt: skip
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c max_connections=300"
    subprocess.run(
        _as_server_user([control, "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start"]),
        check=True, stdout=subprocess.DEVNULL, cwd="/",
    )  # fmt: skip
    yield f"postgresql+psycopg://tester@127.0.0.1:{port}"
    subprocess.run(
        _as_server_user([control, "-D", str(data), "-m", "immediate", "stop"]), stdout=subprocess.DEVNULL, cwd="/"
    )
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database(server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of an empty database."""
    name = f"test_{abs(hash(request.node.name)) % 10**9}"
    control = create_engine(f"{server}/postgres", isolation_level="AUTOCOMMIT")
    with control.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield f"{server}/{name}"
    with control.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    control.dispose()
