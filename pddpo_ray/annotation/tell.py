"""Who is told, and how, that a run waits for people: as the recipe says (`people.tell`)."""

from __future__ import annotations

import os

from pddpo_ray.annotation.mail import MailServer, send_mail
from pddpo_ray.annotation.webhook import post, send
from pddpo_ray.config import TellConfig
from pddpo_ray.errors import UserError

EVENTS = {
    "waiting": "a run waits for people",
    "parked": "a run has parked until people answered",
    "decision": "a run needs a decision",
}


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
