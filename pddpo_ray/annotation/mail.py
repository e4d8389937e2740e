"""Mail by SMTP to people who should hear that a run waits for them."""

from __future__ import annotations

import logging
import smtplib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import EmailMessage

logger = logging.getLogger("pddpo_ray.annotation")

ANSWER_S = 10.0


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
