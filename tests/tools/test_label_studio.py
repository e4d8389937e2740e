"""The connector against a real Label Studio, which wants an environment of its own.

python3 -m venv ls && ls/bin/pip install label-studio
PDDPO_LABEL_STUDIO=ls/bin/label-studio python -m pytest tests/tools
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pddpo_ray.annotation.connectors.label_studio import LabelStudio
from pddpo_ray.annotation.queue.exchange import open_questions, take_answers
from pddpo_ray.annotation.review.audit_checks import imbalances
from pddpo_ray.journal.database import open_database
from tests.support.annotation_queue import FreshQueue, create_run, pair_questions, safety_questions
from tests.support.ports import free_port

pytestmark = pytest.mark.full

START_S = 300.0
USER, PASSWORD = "lead@example.org", "a-long-password-1"
CSRF = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')


@pytest.fixture(scope="module")
def label_studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server with an empty database and one user."""
    program = os.environ.get("PDDPO_LABEL_STUDIO")
    if not program:
        pytest.skip("no Label Studio: install it in an environment of its own and name it in PDDPO_LABEL_STUDIO")
    folder = tmp_path_factory.mktemp("label-studio")
    port = str(free_port())
    command = [program, "start", "--no-browser", "-p", port, "--username", USER, "--password", PASSWORD]
    home = {"LABEL_STUDIO_BASE_DATA_DIR": str(folder), "LABEL_STUDIO_HOST": f"http://127.0.0.1:{port}"}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, env=os.environ | home, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        assert server.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.5)


def personal_token(url: str) -> str:
    """What a user copies from their account page."""
    with httpx.Client(base_url=url, follow_redirects=True) as client:
        form = CSRF.search(client.get("/user/login").text)
        assert form is not None
        login = {"csrfmiddlewaretoken": form[1], "email": USER, "password": PASSWORD}
        client.post("/user/login/", data=login, headers={"Referer": f"{url}/user/login"}).raise_for_status()
        headers = {"X-CSRFToken": client.cookies["csrftoken"], "Referer": url}
        made = client.post("/api/token/", headers=headers)
        assert made.status_code == 201, made.text
        return str(made.json()["token"])


def annotate(url: str, key: str, answers: dict[str, Any]) -> int:
    """Answers every task over the tool's own API, as its page does; a task without an answer is skipped."""
    access = httpx.post(f"{url}/api/token/refresh", json={"refresh": key}).json()["access"]
    done = 0
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {access}"}) as client:
        for project in client.get("/api/projects/").json()["results"]:
            for task in client.get("/api/tasks", params={"project": project["id"], "fields": "all"}).json()["tasks"]:
                given = answers["pair" if "second" in task["data"] else "safety"]
                if task["data"]["prompt"] == "prompt 0":
                    body: dict[str, Any] = {"result": [], "was_cancelled": True}
                else:
                    body = {"result": [choice(name, value) for name, value in given.items()], "lead_time": 4.5}
                client.post(f"/api/tasks/{task['id']}/annotations/", json=body).raise_for_status()
                done += 1
    return done


def choice(name: str, value: str) -> dict[str, Any]:
    return {
        "from_name": name, "to_name": "second" if name == "second_safety" else "first", "type": "choices",
        "value": {"choices": [value]},
    }  # fmt: skip


def test_questions_go_there_answers_come_back_and_both_ways_may_be_repeated(label_studio: str, tmp_path: Path) -> None:
    engine = open_database(tmp_path / "journal.sqlite")
    create_run(engine)
    queue = FreshQueue(engine)
    queue.rounds.open(1, "safety", safety_questions(3), labels_each=1)
    queue.rounds.open(1, "compare", pair_questions(3), labels_each=1)
    key = personal_token(label_studio)
    pair = {"more_helpful": "second", "more_harmful": "first", "first_safety": "unsafe", "second_safety": "safe"}
    there = LabelStudio(label_studio, key, "demo")
    try:
        assert there.push(open_questions(queue.store)) == 6
        assert there.push(open_questions(queue.store)) == 0
        assert annotate(label_studio, key, {"safety": {"safety": "unsafe"}, "pair": pair}) == 6
        taken = take_answers(queue.store, queue.rules, there.name, there.pull())
        assert taken.not_taken == []
        assert dict(taken.outcomes) == {"counted": 4, "skipped": 2}
        again = take_answers(queue.store, queue.rules, there.name, there.pull())
        assert dict(again.outcomes) == {"repeated": 6}
    finally:
        there.close()
    assert {status.purpose: status.counted for status in queue.rounds.all()} == {"safety": 2, "compare": 2}
    assert imbalances(queue.store) == []
    engine.dispose()
