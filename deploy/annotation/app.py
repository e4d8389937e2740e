"""The annotation service as an ASGI application, which tests call in process, without a port.

app = create_app(open_database("runs/demo/journal.sqlite"), "demo")
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from sqlalchemy import Engine, select

from deploy.annotation import routes_admin as admin
from deploy.annotation import routes_lead as lead
from deploy.annotation import routes_trainer as trainer_routes
from deploy.annotation import routes_work as work
from deploy.annotation.description import describe
from deploy.annotation.queue_service import Parts, QueueService, WebSettings
from deploy.web.http_errors import ApiError, Failure
from deploy.web.listening import listen
from deploy.web.web_app import healthy, web_app
from pddpo_ray.annotation.queue.queue_rules import Problem, QueueError, Rules
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.schema import run as run_table
from pddpo_ray.journal.server_lock import sole_server
from pddpo_ray.journal.transactions import Clock, now_ms

STATIC = Path(__file__).parent / "static"
BODY_MAX = 64 * 1024
BATCH_MAX = 8 * 1024 * 1024
"""For the calls that carry many questions."""
BATCH_PATHS = ("/api/v1/rounds", "/api/v1/gold", "/api/v1/gold/preview")


def largest_body(path: str) -> int:
    """Most bytes of a request to this path; a server of several runs puts a prefix before it."""
    return BATCH_MAX if path.endswith(BATCH_PATHS) else BODY_MAX


def create_app(
    engine: Engine,
    run: str,
    rules: Rules | None = None,
    settings: WebSettings | None = None,
    clock: Clock = now_ms,
    together: Mapping[str, QueueService] | None = None,
) -> FastAPI:
    """The annotation service of one run, over the run's database; `together`: all runs that one server serves."""
    app = web_app(
        "pddpo_ray annotation",
        problem,
        {QueueError: refused},
        malformed=422,
        busy="the database is busy; nothing was stored",
        body_bytes=largest_body,
        summary="Questions for people, and what became of their answers.",
        generate_unique_id_function=lambda route: route.name,  # what generated clients call their functions
    )
    app.state.service = QueueService(engine, run, rules or Rules(), settings or WebSettings(), clock, together)
    describe(app, app.state.service)
    for module in (work, lead, admin, trainer_routes):
        app.include_router(module.router)
    app.add_api_route("/healthz", healthy, methods=["GET"], tags=["operation"])
    app.add_api_route("/readyz", ready, methods=["GET"], tags=["operation"])
    app.add_api_route("/", page, methods=["GET"], include_in_schema=False)
    app.add_api_route("/lead", page, methods=["GET"], include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


def ready(parts: Parts) -> dict[str, bool]:
    """The database answers and holds the run (its schema was checked when it was opened)."""
    with reading(parts.store.engine) as connection:
        row = connection.execute(select(run_table.c.id).where(run_table.c.id == parts.store.run)).first()
    if row is None:
        raise ApiError(503, "the run's database is not ready")
    return {"ok": True}


def page(request: Request) -> FileResponse:
    """The annotators' page, or the lead's."""
    name = "lead.html" if request.scope["route"].path == "/lead" else "index.html"
    return FileResponse(STATIC / name, media_type="text/html")


def serve(engine: Engine, run: str, rules: Rules, *, host: str, port: int, behind_proxy: bool) -> None:
    """Serves until told to stop. `behind_proxy`: a proxy in front speaks https and states the client's address.

    Raises UserError if the port is taken, or another server serves the same SQLite file.
    """
    app = create_app(engine, run, rules, WebSettings(secure_cookies=behind_proxy))
    with sole_server(engine, f"http://{host}:{port}/"), closing(listen(host, port)) as listener:
        answering(app, behind_proxy=behind_proxy).run(sockets=[listener])


def answering(app: FastAPI, *, behind_proxy: bool) -> uvicorn.Server:
    """The HTTP server, still without a socket."""
    return uvicorn.Server(
        uvicorn.Config(app, log_level="warning", lifespan="off", proxy_headers=behind_proxy, server_header=False)
    )


STATUS: Mapping[Problem, int] = {
    Problem.NOT_FOUND: 404,
    Problem.NOT_YOURS: 409,
    Problem.ANSWERED_ALREADY: 409,
    Problem.KEY_REUSED: 409,
    Problem.CONFLICT: 409,
    Problem.ROUND_CLOSED: 410,
    Problem.TOO_LATE: 410,
    Problem.DAILY_CAP: 429,
    Problem.MALFORMED: 422,
    Problem.BACKLOG: 429,
    Problem.CONSENT: 409,
}
CODES = {400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed"}
CODES |= {413: "too_large", 422: "malformed", 429: "too_many_requests", 503: "busy"}
PROBLEM_JSON = "application/problem+json"


def problem(failure: Failure) -> JSONResponse:
    code = failure.code or CODES.get(failure.status, "error")
    body = {"type": "about:blank", "title": code.replace("_", " "), "status": failure.status, "code": code}
    body |= {"detail": failure.detail} | ({"hint": failure.hint} if failure.hint else {})
    return JSONResponse(body, failure.status, headers=dict(failure.headers), media_type=PROBLEM_JSON)


def refused(error: QueueError) -> Failure:
    headers = {"Retry-After": "30"} if error.problem is Problem.BACKLOG else {}
    return Failure(STATUS[error.problem], str(error), error.problem.value, headers=headers)
