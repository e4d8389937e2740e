"""The Serve application: an entrance and engine replicas.

`build` is what a Serve config file names (`deploy.serving.deployment:build`, see deploy/serving/serve.yaml);
`serve_forever` is what `pddpo serve` calls.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from actors.session import ray_session
from deploy.serving.app import create_app
from deploy.serving.engine import Kind, Piece, PolicyEngine
from deploy.serving.entrance import EntranceState, most_tokens
from deploy.serving.settings import EngineSettings, ServeArgs, engine_settings, find, mixture_max
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.read_only import open_to_read
from pddpo_ray.journal.transactions import Store
from pddpo_ray.serving.catalog import ServedPolicy, read_catalog

APPLICATION = "pddpo"
ONGOING_MAX = 128
"""Requests inside one engine replica, waiting for their turn or generating."""


@serve.deployment(name="Engine", max_ongoing_requests=ONGOING_MAX)
class EngineReplica:
    """One engine in a process of its own; Serve starts another one when its health check fails."""

    async def __init__(self, settings: EngineSettings, first: ServedPolicy) -> None:  # type: ignore[misc]
        log_as_serve_does()
        self._engine = await PolicyEngine.start(settings)
        await self._engine.check(first)

    async def respond(self, kind: Kind, policy: ServedPolicy, body: dict[str, Any]) -> AsyncGenerator[Piece, None]:
        async for piece in self._engine.respond(kind, policy, body):
            yield piece

    async def check(self, policy: ServedPolicy | None = None) -> dict[str, Any]:
        return await self._engine.check(policy)

    async def check_health(self) -> None:
        await self._engine.healthy()


class Handles:
    """The engine replicas behind a Serve handle, as the entrance calls them."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def respond(self, kind: Kind, policy: ServedPolicy, body: dict[str, Any]) -> AsyncGenerator[Piece, None]:
        pieces = self._handle.options(stream=True).respond.remote(kind, policy, body)
        try:
            async for piece in pieces:
                yield piece
        finally:
            # A client that left, or a deadline, ends the generation too. After the last piece this does nothing.
            pieces.cancel()

    async def check(self, policy: ServedPolicy | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = await self._handle.check.remote(policy)
        return answer


@serve.deployment(name="Entrance", ray_actor_options={"num_cpus": 0})
@serve.ingress()
class Entrance:
    """Keys, limits, the draw, the follower. One replica: its limits and its memory of replies are its own."""

    def __init__(self, args: ServeArgs, engines: DeploymentHandle) -> None:
        served = find(args)
        store = Store(open_database(served.journal), served.run)
        reference = read_catalog(store).policies[0]
        settings = engine_settings(args, served, reference.version.path)
        most = most_tokens(args, settings.max_model_len - 1)
        log_as_serve_does()
        self._state = EntranceState(store, args, Handles(engines), most=most, mixture_max=mixture_max(args, settings))

    def __serve_build_asgi_app__(self) -> Any:
        return create_app(self._state)


def log_as_serve_does() -> None:
    """Our lines go where the replica's own go: Serve's log files."""
    ours, theirs = logging.getLogger("deploy"), logging.getLogger("ray.serve")
    ours.setLevel(logging.INFO)
    for handler in theirs.handlers:
        if handler not in ours.handlers:
            ours.addHandler(handler)


def build(args: ServeArgs | dict[str, Any]) -> Application:
    """The application for these arguments (a config file's `args`). Raises UserError when there is no run to serve."""
    args = ServeArgs.model_validate(args)
    args = args.model_copy(update={"run": str(Path(args.run).expanduser().absolute())})
    served = find(args)
    engine = open_to_read(served.journal)
    try:
        catalog = read_catalog(Store(engine, served.run))
    finally:
        engine.dispose()
    first = catalog.policies[0 if catalog.released is None else catalog.released]
    settings = engine_settings(args, served, catalog.policies[0].version.path)
    replica = EngineReplica.options(  # type: ignore[attr-defined]
        num_replicas=args.engines,
        ray_actor_options={"num_cpus": args.cpus, "num_gpus": args.gpus},
        health_check_period_s=10,
        health_check_timeout_s=max(60.0, args.request_s),
        graceful_shutdown_timeout_s=args.request_s,
    )
    entrance = Entrance.options(  # type: ignore[attr-defined]
        max_ongoing_requests=ONGOING_MAX * args.engines,
        max_queued_requests=args.waiting_max,
        graceful_shutdown_timeout_s=args.request_s,
    )
    application: Application = entrance.bind(args, replica.bind(settings, first))
    return application


def serve_forever(args: ServeArgs, *, host: str, port: int, address: str | None = None) -> None:
    """Serves until it is told to stop (Ctrl-C, SIGTERM). `address`: a running cluster; None: a session of this machine.

    Raises UserError when there is no run to serve, before anything is started.
    """
    application = build(args)
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    with ray_session(f"pddpo-serve/{Path(args.run).name}", address=address):
        serve.start(http_options={"host": host, "port": port})
        try:
            serve.run(application, name=APPLICATION, route_prefix="/")
            print(f"ready: http://{host}:{port}/v1", flush=True)
            stop.wait()
        finally:
            serve.delete(APPLICATION) if address else serve.shutdown()
