"""One server for several runs: each with its pages and its API under `/runs/NAME/`, and one sign-in for all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import RedirectResponse
from sqlalchemy import Engine

from deploy.annotation.app import answering, create_app, largest_body, problem, ready
from deploy.annotation.queue_service import QueueService, WebSettings
from deploy.web.listening import listen
from deploy.web.web_app import healthy, web_app
from pddpo_ray.annotation.queue.queue_rules import Rules
from pddpo_ray.journal.server_lock import sole_server
from pddpo_ray.journal.transactions import Clock, now_ms


@dataclass(frozen=True)
class ServedRun:
    """A run, its database, and its name in `/runs/NAME/`."""

    name: str
    engine: Engine
    run: str
    rules: Rules


def names_of(folders: Sequence[Path]) -> list[str]:
    """A name for each run folder: letters, digits, - and _; no name twice."""
    names: list[str] = []
    for folder in folders:
        base = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.name).strip("-") or "run"
        candidates = [base, *(f"{base}-{number}" for number in range(2, len(folders) + 1))]
        names.append(next(name for name in candidates if name not in names))
    return names


def create_app_of_several(
    runs: Sequence[ServedRun], settings: WebSettings | None = None, clock: Clock = now_ms
) -> FastAPI:
    """The annotation services of several runs; `/` is the first one's page, which moves to the others by itself."""
    together: dict[str, QueueService] = {}
    root = web_app(
        "pddpo_ray annotation of several runs", problem, {}, malformed=422, busy="the database is busy",
        body_bytes=largest_body,
    )  # fmt: skip
    for run in runs:
        app = create_app(run.engine, run.run, run.rules, settings, clock, together)
        together[run.name] = app.state.service
        root.mount(f"/runs/{run.name}", app)

    def to_first() -> RedirectResponse:
        return RedirectResponse(f"runs/{runs[0].name}/", 303)

    def to_first_lead() -> RedirectResponse:
        return RedirectResponse(f"runs/{runs[0].name}/lead", 303)

    def all_ready() -> dict[str, bool]:
        return {"ok": all(ready(parts)["ok"] for parts in together.values())}

    root.add_api_route("/", to_first, methods=["GET"])
    root.add_api_route("/lead", to_first_lead, methods=["GET"])
    root.add_api_route("/healthz", healthy, methods=["GET"])
    root.add_api_route("/readyz", all_ready, methods=["GET"])
    return root


def serve_several(runs: Sequence[ServedRun], *, host: str, port: int, behind_proxy: bool) -> None:
    """Serves all of them until told to stop. Raises UserError as `app.serve` does."""
    app = create_app_of_several(runs, WebSettings(secure_cookies=behind_proxy))
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(sole_server(run.engine, f"http://{host}:{port}/runs/{run.name}/"))
        listener = stack.enter_context(closing(listen(host, port)))
        answering(app, behind_proxy=behind_proxy).run(sockets=[listener])
