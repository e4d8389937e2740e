"""Notifications that a run waits for people: by webhook, in Slack's form and by mail (`people.tell`)."""

from __future__ import annotations

import logging
import os
import smtplib
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any

import httpx

from pddpo_ray.config import TellConfig
from pddpo_ray.errors import UserError

logger = logging.getLogger("pddpo_ray.annotation")

EVENTS = {
    "waiting": "a run waits for people",
    "parked": "a run has parked until people answered",
    "decision": "a run needs a decision",
}
TRIES, BETWEEN_S, ANSWER_S = 3, 2.0, 10.0


class Teller:
    """Sends each event of a run to the webhook and by mail. Raises UserError where a secret is not in the
    environment."""

    def __init__(self, settings: TellConfig, run: str) -> None:
        self._settings, self._run = settings, run
        self._url = None if settings.webhook_env is None else _secret(settings.webhook_env)
        user, password = (
            None if name is None else _secret(name) for name in (settings.user_env, settings.password_env)
        )
        host, _, port = settings.smtp.rpartition(":")
        self._server = MailServer(host, int(port), settings.starttls, user, password)

    def __call__(self, event: str, text: str) -> None:
        """Sends all notifications; one that cannot be sent is logged and stops nothing."""
        subject = f"{EVENTS[event]}: {self._run}"
        if self._url is not None and self._settings.form == "slack":
            post(self._url, {"text": f"{subject}\n{text}"})
        elif self._url is not None:
            send(self._url, f"people.{event}", {"text": f"{subject}: {text}", "run": self._run})
        if self._settings.mail_to:
            send_mail(self._server, self._settings.mail_from, self._settings.mail_to, subject, text)


def _secret(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise UserError(f"people.tell: the environment has no {name}; set it, or take it out of the recipe")
    return value


@dataclass(frozen=True)
class MailServer:
    """Where mail is handed in. `user` and `password` are both given or neither."""

    host: str
    port: int = 25
    starttls: bool = False
    user: str | None = None
    password: str | None = None


def send_mail(server: MailServer, sender: str, to: Sequence[str], subject: str, text: str) -> bool:
    """Sends one plain message to all addresses in `to`. Returns whether the server took it; never raises."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = sender, ", ".join(to), " ".join(subject.split())
    message.set_content(text)
    try:
        with smtplib.SMTP(server.host, server.port, timeout=ANSWER_S) as connection:
            if server.starttls:
                connection.starttls(context=ssl.create_default_context())
            if server.user is not None and server.password is not None:
                connection.login(server.user, server.password)
            connection.send_message(message)
    except (OSError, smtplib.SMTPException) as error:
        logger.error("mail by %s:%d: %s", server.host, server.port, type(error).__name__)
        return False
    return True


def send(url: str, event: str, data: Mapping[str, Any]) -> bool:
    """POST {"event", "text", ...} as JSON; `text` is what chat services show. Whether it was taken; never raises."""
    return post(url, {"event": event, **data})


def post(url: str, body: Mapping[str, Any]) -> bool:
    """POST these JSON fields and nothing else. Whether it was taken; never raises."""
    for number in range(TRIES):
        try:
            httpx.post(url, json=dict(body), timeout=ANSWER_S).raise_for_status()
            return True
        except httpx.HTTPError as error:
            # the address may hold a secret of its own: the log names the host alone
            logger.error("webhook at %s: %s", httpx.URL(url).host, type(error).__name__)
            time.sleep(BETWEEN_S if number + 1 < TRIES else 0)
    return False
