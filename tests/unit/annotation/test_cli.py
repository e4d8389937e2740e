"""The verbs `annotate` and `simulate-annotators`: mistakes are one line, tokens are kept from others."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.annotation.command import ADMIN_TOKEN, _first_admin
from pddpo_lab.simulated_people import wait_for_service
from pddpo_ray.annotation.people.accounts import People, Role
from pddpo_ray.cli.main import main
from pddpo_ray.errors import UserError
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.server_lock import sole_server
from pddpo_ray.journal.transactions import Store
from tests.support.ports import free_port


def ends(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["annotate", "--run", "nowhere"], "there is no run in"),
        (["annotate", "--run", "RUN", "--host", "0.0.0.0"], "--behind-proxy"),
        (["annotate", "--run", "RUN", "--add", "ana", "--role", "queen"], "queen"),
        (["annotate", "--run", "RUN", "--add", "<b>"], "letters"),
        (["simulate-annotators", "--run", "RUN"], "start `pddpo annotate"),
        (["simulate-annotators", "--run", "RUN", "--people", "2", "--lazy", "3"], "--lazy 3 is more than --people 2"),
        (
            ["simulate-annotators", "--run", "RUN", "--token", "x", "--url", "http://127.0.0.1:9"],
            "no annotation service",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert ends([str(run) if word == "RUN" else word for word in arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_port_that_is_taken_is_one_line_and_not_exit_code_3(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert ends(["annotate", "--run", str(run), "--port", port]) == 2
    error = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1:{port}" in error
    assert error.count("\n") == 1


@pytest.mark.full
@pytest.mark.run
def test_a_second_server_of_one_sqlite_file_is_refused_while_the_first_one_lives(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "pddpo_ray", "annotate", "--run", str(run), "--port"]
    port = free_port()
    first = subprocess.Popen([*command, str(port)], stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for_service(url)
        assert ends(["annotate", "--run", str(run), "--port", "8791"]) == 2
        assert f"served already (process {first.pid} at {url}/)" in capsys.readouterr().err
    finally:
        first.kill()
        first.wait(30)
    engine = open_database(run / "journal.sqlite")
    with sole_server(engine, "here"), pytest.raises(UserError, match="at here"), sole_server(engine, "there"):
        pass
    engine.dispose()


def test_an_account_is_made_from_the_command_line_and_its_token_works(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(["annotate", "--run", str(run), "--add", "ana", "--role", "lead", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    engine = open_database(run / "journal.sqlite")
    person = People(Store(engine, "demo")).by_token(made["token"])
    assert person is not None
    assert (person.handle, person.role) == ("ana", Role.LEAD)
    engine.dispose()


def test_the_first_admins_token_is_readable_by_its_owner_alone(run: Path) -> None:
    engine = open_database(run / "journal.sqlite")
    people = People(Store(engine, "demo"))
    file = _first_admin(people, run)
    token = file.read_text()
    assert file.name == ADMIN_TOKEN
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    _first_admin(people, run)
    assert file.read_text() == token
    assert [person.role for person in people.all()] == [Role.ADMIN]
    engine.dispose()
