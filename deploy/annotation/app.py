"""The ASGI application. A value that can be called in process; no test needs a port.

app = create_app(open_database("runs/demo/journal.sqlite"), "demo")
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from sqlalchemy import Engine, select

from deploy.annotation import admin, lead, problems, runs, work
from deploy.annotation.limits import BodyLimit, SecurityHeaders
from deploy.annotation.service import Parts, Service, WebSettings
from pddpo_ray import __version__
from pddpo_ray.annotation.rules import Rules
from pddpo_ray.journal.database import reading
from pddpo_ray.journal.schema import run as run_table
from pddpo_ray.journal.transactions import Clock, now_ms

STATIC = Path(__file__).parent / "static"


def create_app(
    engine: Engine,
    run: str,
    rules: Rules | None = None,
    settings: WebSettings | None = None,
    clock: Clock = now_ms,
) -> FastAPI:
    """The annotation service of one run, over the run's database."""
    app = FastAPI(
        title="pddpo_ray annotation",
        version=__version__,
        summary="Questions for people, and what became of their answers.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = Service.over(engine, run, rules or Rules(), settings or WebSettings(), clock)
    problems.install(app)
    for module in (work, lead, admin, runs):
        app.include_router(module.router)
    app.add_api_route("/healthz", healthy, methods=["GET"], tags=["operation"])
    app.add_api_route("/readyz", ready, methods=["GET"], tags=["operation"])
    app.add_api_route("/", page, methods=["GET"], include_in_schema=False)
    app.add_api_route("/lead", page, methods=["GET"], include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_middleware(BodyLimit)
    app.add_middleware(SecurityHeaders)
    return app


def healthy() -> dict[str, bool]:
    """The process answers."""
    return {"ok": True}


def ready(parts: Parts) -> dict[str, bool]:
    """The database answers and holds the run (its schema was checked when it was opened)."""
    with reading(parts.store.engine) as connection:
        known = connection.execute(select(run_table.c.id).where(run_table.c.id == parts.store.run)).first()
    if known is None:
        raise problems.ApiError(503, "the run's database is not ready")
    return {"ok": True}


def page(request: Request) -> FileResponse:
    """The annotators' page, or the lead's."""
    name = "lead.html" if request.url.path == "/lead" else "index.html"
    return FileResponse(STATIC / name, media_type="text/html")
