"""A run that waits tells people by webhook and mail: against real local servers."""

from __future__ import annotations

import email
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from pddpo_ray.annotation.notifications import MailServer, Teller, send_mail
from pddpo_ray.annotation.queue_labeller import Waiting
from pddpo_ray.config import TellConfig, load
from pddpo_ray.errors import DecisionNeeded, ParkedError, UserError
from pddpo_ray.records import Prompt, Response
from tests.support.annotation_queue import FreshQueue, people_of

ITEMS = [Response(f"r{n}", Prompt("p0", (1, 2), "how do i sleep ?"), (3,), f"text {n}", 4, 1) for n in range(2)]


@contextmanager
def listening(server: Any) -> Iterator[Any]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class Smtp(socketserver.StreamRequestHandler):
    """As much of RFC 5321 as a client that hands in one message needs."""

    def handle(self) -> None:
        said: Any = self.server
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline().decode().strip():
            verb = line.split(" ")[0].upper()
            if verb == "DATA":
                self.wfile.write(b"354 continue\r\n")
                body = b"".join(iter(self.rfile.readline, b".\r\n"))
                said.mails.append((said.to, email.message_from_bytes(body)))
                said.to = []
                self.wfile.write(b"250 taken\r\n")
            elif verb == "QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            else:
                if verb == "RCPT":
                    said.to.append(line)
                self.wfile.write(b"250 ok\r\n")


class Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(server.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def smtp() -> Iterator[Any]:
    server: Any = socketserver.TCPServer(("127.0.0.1", 0), Smtp)
    server.mails, server.to = [], []
    with listening(server):
        yield server


@pytest.fixture
def hook() -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), Hook)
    server.bodies, server.status = [], 200
    with listening(server):
        yield server


def teller(monkeypatch: pytest.MonkeyPatch, hook: Any, smtp: Any, form: str) -> Teller:
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{hook.server_address[1]}/secret")
    told = {"webhook_env": "HOOK", "form": form, "mail_to": ["ana@example.org", "ben@example.org"]}
    told |= {"smtp": f"127.0.0.1:{smtp.server_address[1]}", "mail_from": "pddpo@example.org"}
    return Teller(TellConfig.model_validate(told), "demo")


def test_a_run_tells_that_it_waits_that_it_needs_a_decision_and_that_it_parked_once_each(
    queue: FreshQueue, monkeypatch: pytest.MonkeyPatch, hook: Any, smtp: Any
) -> None:
    people = people_of(queue, Waiting(100.0, decide=True, tell_after_s=0.0),
        tell=teller(monkeypatch, hook, smtp, "generic"), clock=lambda: queue.now_ms, sleep=queue.wait,
    )  # fmt: skip
    with pytest.raises(DecisionNeeded):
        people.safety(ITEMS, 3, seed=0)
    assert [body["event"] for body in hook.bodies] == ["people.waiting", "people.decision"]
    assert "0 of 6 labels" in hook.bodies[0]["text"]
    assert hook.bodies[0]["run"] == "demo"
    (to, first), (_, second) = smtp.mails
    assert [line for line in to if "ana@example.org" in line]
    assert [line for line in to if "ben@example.org" in line]
    assert first["Subject"] == "a run waits for people: demo"
    assert second["Subject"] == "a run needs a decision: demo"
    assert "labels are missing at the deadline" in second.get_payload().replace("=\n", "")
    parking = people_of(queue, Waiting(100.0, park_after_s=0.0), 3,
        tell=teller(monkeypatch, hook, smtp, "slack"), clock=lambda: queue.now_ms,
    )  # fmt: skip
    with pytest.raises(ParkedError):
        parking.safety(ITEMS, 3, seed=0)
    assert set(hook.bodies[-1]) == {"text"}
    assert hook.bodies[-1]["text"].startswith("a run has parked until people answered: demo\n")


def test_servers_that_are_away_or_refuse_stop_nothing_and_no_secret_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hook: Any, smtp: Any
) -> None:
    monkeypatch.setattr("pddpo_ray.annotation.notifications.BETWEEN_S", 0.0)
    hook.status = 500
    tell = teller(monkeypatch, hook, smtp, "slack")
    smtp.shutdown()
    smtp.server_close()
    tell("waiting", "text")
    assert len(hook.bodies) == 3
    assert "secret" not in caplog.text
    assert "mail by 127.0.0.1" in caplog.text
    assert not send_mail(MailServer("127.0.0.1", 1), "a@b.c", ["d@e.f"], "two\nlines", "text")


def test_a_secret_that_is_not_in_the_environment_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOOK", raising=False)
    with pytest.raises(UserError, match="the environment has no HOOK"):
        Teller(TellConfig(webhook_env="HOOK"), "demo")
    config = load("text-world-people", ["people.tell={mail_to: [ana@example.org], smtp: 'mail.example.org:587'}"])
    assert config.people.tell.smtp == "mail.example.org:587"  # type: ignore[union-attr]
    with pytest.raises(UserError, match="smtp"):
        load("text-world-people", ["people.tell={mail_to: [ana@example.org], smtp: nowhere}"])
    with pytest.raises(UserError, match="no one is notified"):
        load("text-world-people", ["people.tell={}"])
