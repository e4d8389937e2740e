"""Serves the annotation app from this process until it is told to stop."""

from __future__ import annotations

import uvicorn
from sqlalchemy import Engine

from deploy.annotation.app import create_app
from deploy.annotation.queue_service import WebSettings
from pddpo_ray.annotation.rules import Rules


def serve(engine: Engine, run: str, rules: Rules, *, host: str, port: int, behind_proxy: bool) -> None:
    """Blocks. `behind_proxy`: a proxy in front speaks https and states the client's address."""
    app = create_app(engine, run, rules, WebSettings(secure_cookies=behind_proxy))
    uvicorn.run(
        app, host=host, port=port, log_level="warning", lifespan="off", proxy_headers=behind_proxy, server_header=False
    )
