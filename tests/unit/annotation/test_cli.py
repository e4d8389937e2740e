"""The verbs `annotate` and `simulate-annotators`: mistakes are one line, tokens are kept from others."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from pddpo_ray.annotation.people import People, Role
from pddpo_ray.cli.annotate import ADMIN_TOKEN, _first_admin
from pddpo_ray.cli.main import main
from pddpo_ray.config import load
from pddpo_ray.journal import Journal
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import Store


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "demo"
    config = load("tabular", ["feedback.kind=people"])
    place = folder / "journal.sqlite"
    Journal.open(place, "demo", create=config.model_dump(mode="json"), fixed=config.fixed_settings()).close()
    return folder


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
        (["simulate-annotators", "--run", "RUN", "--people", "2", "--lazy", "3"], "there are not so many"),
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
