"""Where a server listens: its options, and the refusal to show secrets to a network."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from pddpo_ray.errors import UserError

LOCAL = ("127.0.0.1", "localhost", "::1")
Host = Annotated[str, typer.Option(help="Address to listen on.")]
BehindProxy = Annotated[
    bool, typer.Option("--behind-proxy", help="A proxy in front speaks https: needed for other hosts than this.")
]


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises UserError where that fails, as on a taken port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port} ({error.strerror or error}): name another port with --port"
        ) from error


def refuse_open_network(host: str, behind_proxy: bool, secrets: str, *, own_https: str = "") -> None:
    """Raises UserError where plain http would carry secrets beyond this machine without a proxy in front.

    own_https: how this server speaks https itself, where it can.
    """
    if host not in LOCAL and not behind_proxy:
        raise UserError(
            f"--host {host} would show {secrets} and texts to the network: put a proxy with https in front and add"
            f" --behind-proxy, {own_https}or stay on 127.0.0.1"
        )
