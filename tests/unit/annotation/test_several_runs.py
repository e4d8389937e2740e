"""One page for several runs: one sign-in, one notice, one day's limits; answers stay with their run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from deploy.annotation.multi_run_app import names_of
from pddpo_lab.simulated_people import wait_for_service
from pddpo_ray.annotation.people.accounts import People, Role
from pddpo_ray.annotation.people.notice import VERSION
from pddpo_ray.annotation.review.audit_checks import broken_links, imbalances
from pddpo_ray.cli.main import main
from pddpo_ray.config import load
from pddpo_ray.journal import Journal
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.transactions import Store
from tests.support.annotation_queue import safety_questions
from tests.support.annotation_together import TwoRuns, two_runs
from tests.support.ports import free_port

NOON = 1_700_049_600_000


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[TwoRuns]:
    with two_runs(tmp_path, NOON) as made:
        yield made


def api(name: str, path: str) -> str:
    return f"/runs/{name}/api/v1{path}"


def signs_in(client: TestClient, name: str, token: str) -> dict[str, Any]:
    reply = client.post(api(name, "/session"), json={"token": token})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def csrf(client: TestClient, name: str) -> dict[str, str]:
    return {"X-CSRF-Token": client.get(api(name, "/me")).json()["csrf"]}


def leases(client: TestClient, name: str) -> Any:
    return client.post(api(name, "/lease"), json={}, headers=csrf(client, name))


@pytest.mark.slow
def test_one_sign_in_and_one_notice_serve_both_runs_and_answers_stay_with_their_run(runs: TwoRuns) -> None:
    for number, queue in enumerate(runs.queues.values(), 1):
        queue.rounds.open(1, "safety", safety_questions(number), labels_each=1)
    client = runs.client()
    me = signs_in(client, "first", runs.token("first", "ana"))
    assert client.get(api("second", "/me")).json()["id"] == me["id"]
    assert client.get(api("second", "/runs")).json() == {
        "runs": [{"name": "first", "here": False}, {"name": "second", "here": True}]
    }
    assert leases(client, "second").json()["code"] == "consent"
    agreed = client.post(api("first", "/consent"), json={"version": VERSION}, headers=csrf(client, "first"))
    assert agreed.status_code == 200
    for name, count in (("first", 1), ("second", 2)):
        for number in range(count):
            task = leases(client, name).json()["task"]
            body = {"lease": task["lease"], "kind": "label", "given": {"safety": "safe"}, "revealed": True}
            key = f"{name}-key-{number}"
            assert client.put(api(name, f"/answers/{key}"), json=body, headers=csrf(client, name)).status_code == 201
        assert leases(client, name).json()["reason"] == "none"
    for name, queue in runs.queues.items():
        status = queue.rounds.all()[0]
        assert status.complete, name
        assert imbalances(queue.store) == []
        assert broken_links(queue.store) == []


@pytest.mark.slow
def test_signing_out_of_one_run_signs_out_of_all_and_gives_all_questions_back(runs: TwoRuns) -> None:
    for queue in runs.queues.values():
        queue.rounds.open(1, "safety", safety_questions(1), labels_each=1)
    client = runs.client()
    signs_in(client, "first", runs.token("first", "ana"))
    client.post(api("first", "/consent"), json={"version": VERSION}, headers=csrf(client, "first"))
    for name in runs.queues:
        assert leases(client, name).json()["task"]
    assert client.delete(api("second", "/session"), headers=csrf(client, "second")).status_code == 200
    for name, queue in runs.queues.items():
        assert client.get(api(name, "/me")).status_code == 401
        assert queue.leases.held() == []


@pytest.mark.slow
def test_limits_of_a_day_count_over_all_runs(runs: TwoRuns) -> None:
    for queue in runs.queues.values():
        queue.rounds.open(1, "safety", safety_questions(5), labels_each=1)
    client = runs.client()
    token = runs.token("first", "ana", daily_cap=3, harmful_cap=1)
    signs_in(client, "first", token)
    client.post(api("first", "/consent"), json={"version": VERSION}, headers=csrf(client, "first"))

    def answer(name: str, key: str, verdict: str) -> None:
        task = leases(client, name).json()["task"]
        body = {"lease": task["lease"], "kind": "label", "given": {"safety": verdict}, "revealed": True}
        assert client.put(api(name, f"/answers/{key}"), json=body, headers=csrf(client, name)).status_code == 201

    answer("first", "key-00001", "safe")
    answer("second", "key-00002", "safe")
    answer("second", "key-00003", "safe")
    assert leases(client, "first").status_code == 429
    assert leases(client, "second").status_code == 429
    runs.queues["first"].wait(86_400)
    for one in runs.queues.values():
        one.now_ms = runs.queues["first"].now_ms
    client = runs.client()
    signs_in(client, "second", token)
    answer("second", "key-00004", "unsafe")
    # the questions of the test are mild (risk 0): they are all that is left after the dose
    runs.queues["first"].rounds.open(2, "safety", safety_questions(1), labels_each=1)
    ana = next(one for one in runs.queues["first"].people.all() if one.handle == "ana")
    assert runs.queues["second"].leases.today(ana.id).harmful == 1
    assert leases(client, "first").json()["task"]


@pytest.mark.slow
def test_a_dose_that_was_read_in_one_run_leaves_no_harmful_text_in_another(runs: TwoRuns) -> None:
    for queue in runs.queues.values():
        unknown = [replace(question, risk=1.0) for question in safety_questions(3)]
        queue.rounds.open(1, "safety", unknown, labels_each=1)
    client = runs.client()
    signs_in(client, "first", runs.token("first", "ana", harmful_cap=1))
    client.post(api("first", "/consent"), json={"version": VERSION}, headers=csrf(client, "first"))
    task = leases(client, "second").json()["task"]
    body = {"lease": task["lease"], "kind": "label", "given": {"safety": "unsafe"}, "revealed": True}
    assert client.put(api("second", "/answers/key-00001"), json=body, headers=csrf(client, "second")).status_code == 201
    assert leases(client, "first").json()["reason"] == "dose"


def test_a_new_token_ends_the_old_one_in_every_run(runs: TwoRuns) -> None:
    old = runs.token("first", "ana")
    client = runs.client()
    me = signs_in(client, "first", old)
    admin = runs.token("first", "root", Role.ADMIN)
    made = client.post(api("first", f"/people/{me['id']}/token"), headers={"Authorization": f"Bearer {admin}"}).json()
    for name in runs.queues:
        other = runs.client()
        assert other.post(api(name, "/session"), json={"token": old}).status_code == 401
        assert signs_in(other, name, made["token"])["handle"] == "ana"
        assert client.get(api(name, "/me")).status_code == 401


@pytest.mark.slow
def test_who_is_paused_in_one_run_is_not_brought_back_by_another(runs: TwoRuns) -> None:
    token = runs.token("first", "ana")
    me = signs_in(runs.client(), "first", token)
    runs.queues["second"].people.change(me["id"], by="test", active=False)
    client = runs.client()
    signs_in(client, "first", token)
    assert client.get(api("second", "/me")).status_code == 401
    refused = client.post(api("second", "/session"), json={"token": token})
    assert refused.status_code == 401
    assert "/runs/first/" in refused.json()["hint"]


def test_a_taken_handle_keeps_its_own_person(runs: TwoRuns) -> None:
    theirs = runs.token("second", "ana")
    ours = runs.token("first", "ana")
    client = runs.client()
    signs_in(client, "first", ours)
    assert client.get(api("second", "/me")).status_code == 401
    assert signs_in(client, "second", theirs)["handle"] == "ana"


def test_an_invitation_of_one_run_makes_the_account_in_all(runs: TwoRuns) -> None:
    admin = runs.token("first", "root", Role.ADMIN)
    body = {"handle": "ben", "page": "http://here/runs/first/"}
    made = runs.client().post(
        api("first", "/invitations"), json=body, headers={"Authorization": f"Bearer {admin}"}
    ).json()  # fmt: skip
    assert made["link"] == f"http://here/runs/first/#invite={made['code']}"
    client = runs.client()
    assert client.post(api("first", "/invitation"), json={"code": made["code"]}).status_code == 201
    assert client.get(api("second", "/me")).json()["handle"] == "ben"


def test_the_root_leads_to_the_first_run_and_a_large_batch_fits(runs: TwoRuns) -> None:
    client = runs.client()
    page = client.get("/")
    assert (page.status_code, page.url.path) == (200, "/runs/first/")
    assert client.get("/lead").url.path == "/runs/first/lead"
    assert 'id="rounds"' in client.get("/runs/second/lead").text
    assert client.get("/readyz").json() == {"ok": True}
    assert client.get("/runs/second/static/runs.js").status_code == 200
    assert client.get("/runs/third/").status_code == 404
    service = runs.token("second", "trainer", Role.SERVICE)
    questions = [
        {"kind": "safety", "item": f"i{n}", "prompt": "p" * 900, "first": "f", "policy_version": 0} for n in range(100)
    ]
    body = {"round": 1, "purpose": "safety", "labels_each": 1, "questions": questions}
    opened = client.post(api("second", "/rounds"), json=body, headers={"Authorization": f"Bearer {service}"})
    assert opened.status_code in (200, 201), opened.text


def test_names_are_plain_and_no_name_comes_twice() -> None:
    folders = [Path("a/run"), Path("b/run"), Path("c/día 1"), Path("d/..")]
    assert names_of(folders) == ["run", "run-2", "d-a-1", "run-3"]


def run_folder(folder: Path) -> Path:
    config = load("tabular", ["feedback.kind=people"])
    recipe = config.model_dump(mode="json")
    Journal.open(folder / "journal.sqlite", folder.name, create=recipe, fixed=config.fixed_settings()).close()
    return folder


@pytest.mark.full
@pytest.mark.run
def test_the_command_serves_two_runs_with_one_admin_and_adds_people_to_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [run_folder(tmp_path / name) for name in ("one", "two")]
    options = [word for folder in folders for word in ("--run", str(folder))]
    with pytest.raises(SystemExit) as end:
        main(["annotate", *options, "--add", "ana", "--json"])
    assert not end.value.code
    token = json.loads(capsys.readouterr().out)["token"]
    for folder in folders:
        engine = open_database(folder / "journal.sqlite")
        person = People(Store(engine, folder.name)).by_token(token)
        assert person is not None
        assert person.handle == "ana"
        engine.dispose()
    with pytest.raises(SystemExit) as end:
        main(["annotate", "--run", str(folders[0]), "--run", str(folders[0])])
    assert end.value.code == 2
    assert "twice" in capsys.readouterr().err

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "pddpo_ray", "annotate", *options, "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for_service(url)
        admin = (folders[0] / "annotation-admin-token").read_text().strip()
        assert not (folders[1] / "annotation-admin-token").exists()
        for name in ("one", "two"):
            reply = httpx.get(f"{url}/runs/{name}/api/v1/people", headers={"Authorization": f"Bearer {admin}"})
            assert {one["handle"] for one in reply.json()["people"]} == {"admin", "ana"}
        with pytest.raises(SystemExit) as end:
            main(["annotate", "--run", str(folders[1]), "--port", "8791"])
        assert end.value.code == 2
        assert f"{url}/runs/two/" in capsys.readouterr().err
    finally:
        server.kill()
        server.wait(30)
