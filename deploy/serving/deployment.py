"""The Serve application: an entrance and engine replicas.

`build` is what a Serve config file names (`deploy.serving.deployment:build`, see deploy/serving/serve.yaml);
`serve_forever` is what `pddpo serve` calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve import Application
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from actors.session import ray_session
from deploy.serving.app import create_app
from deploy.serving.app_state import Engines, EntranceState, most_tokens
from deploy.serving.engines.engine import EngineGone, Piece, PolicyEngine, TokensCall
from deploy.serving.engines.waits import DEAD, Waits
from deploy.serving.engines.warm_engines import warm_up
from deploy.serving.measured_traffic import WatchedLimit, watched_limits
from deploy.serving.proxy import CALLBACK, CALLBACK_VARIABLE
from deploy.serving.request_fields import Kind
from deploy.serving.settings import ONGOING_MAX, EngineSettings, ServeArgs, engine_settings, find, mixture_max
from deploy.serving.stopping import StopSignals, ended_by_sigterm, let_finish
from pddpo_ray.certificates.testing import decoding_of
from pddpo_ray.config import Config
from pddpo_ray.errors import RunError, UserError
from pddpo_ray.journal.database import open_database
from pddpo_ray.journal.read_only import open_to_read
from pddpo_ray.journal.transactions import Store
from pddpo_ray.serving.catalog import ServedPolicy, read_catalog
from pddpo_ray.serving.keys import ApiKeys
from pddpo_ray.storage.checkpoints import control_tokens
from pddpo_ray.storage.whole_files import kept_secret
from pddpo_ray.training.device import loaded_on

APPLICATION = "pddpo"
"""Beginning of an application's name on a cluster; the run's folder follows, so that runs stand beside each other."""
DRAW_KEY = "serve-draw-key"
"""File with the secret of the mixture's draws: the same for every entrance, and after a new start."""
PROXY = "SERVE_PROXY_ACTOR"
"""Prefix of the names of HTTP proxies."""
CONTROL_MAX = 64
"""Requests besides answers that an entrance takes at once: health, models, administration. It refuses answers itself
when it is full, so that these need not wait behind answers."""
HEALTH_S = 1.0
"""How often Serve checks a replica, and so how late it may learn that one has ended."""
WATCH_S = 0.2
GONE = (RayActorError, DeploymentUnavailableError, ReplicaUnavailableError)


@serve.deployment(name="Engine", max_ongoing_requests=ONGOING_MAX)
class EngineReplica:
    """One engine. Serve starts another replica where this one ends or fails its health check."""

    async def __init__(self, settings: EngineSettings, first: ServedPolicy, alone: bool) -> None:  # type: ignore[misc]
        """`alone`: no other replica answers while this one has no engine, so it starts the next one itself."""
        log_as_serve_does()
        self._settings, self._is_alone, self._waits = settings, alone, Waits()
        warm_up(settings.threads)
        self._engine = await self._start(first)
        self._watching = asyncio.create_task(self._watch())

    async def _start(self, policy: ServedPolicy) -> PolicyEngine:
        engine = await PolicyEngine.start(self._settings)
        await engine.check(policy)
        self._first = policy
        return engine

    async def _watch(self) -> None:
        """Replaces a dead vLLM or ends this replica at once; Serve would check health three times first."""
        while True:
            await asyncio.sleep(WATCH_S)
            if not self._engine.dead:
                continue
            log = logging.getLogger("deploy.serving")
            log.error("vLLM has died: %s", "another one is started" if self._is_alone else "this replica ends")
            if not self._is_alone:
                os._exit(1)
            self._waits.end()
            try:
                self._engine.close()
                self._engine = await self._start(self._engine.gate.current or self._first)
            except BaseException as error:
                log.error("the next vLLM did not start: this replica ends", exc_info=error)
                os._exit(1)

    async def respond(
        self, kind: Kind, policy: ServedPolicy, body: dict[str, Any], trace: str = ""
    ) -> AsyncGenerator[Piece, None]:
        async with self._waits.on(self._engine) as engine:
            async for piece in engine.respond(kind, policy, body, trace):
                # vLLM makes a reply of its own death
                if engine.dead and isinstance(piece, dict) and int(piece["status"]) >= 500:
                    raise EngineGone(DEAD)
                yield piece

    async def tokens(self, way: TokensCall, body: dict[str, Any]) -> dict[str, Any]:
        async with self._waits.on(self._engine) as engine:
            return await engine.tokens(way, body)

    async def alive(self) -> None:
        async with self._waits.on(self._engine):
            return

    async def check(self, policy: ServedPolicy | None = None) -> dict[str, Any]:
        async with self._waits.on(self._engine) as engine:
            return await engine.check(policy)

    async def check_health(self) -> None:
        if not self._engine.dead:  # a dead one is replaced by `_watch`
            async with self._waits.on(self._engine) as engine:
                await engine.healthy()


class Handles:
    """The engine replicas behind a Serve handle, as the entrance calls them."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def respond(
        self, kind: Kind, policy: ServedPolicy, body: dict[str, Any], trace: str = ""
    ) -> AsyncGenerator[Piece, None]:
        pieces = self._handle.options(stream=True).respond.remote(kind, policy, body, trace)
        try:
            async for piece in pieces:
                yield piece
        except GONE as error:
            raise EngineGone(str(error)) from error
        finally:
            # A client that left, or a deadline, ends the generation too. After the last piece this does nothing.
            pieces.cancel()

    async def tokens(self, way: TokensCall, body: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await self._handle.tokens.remote(way, body)
        except GONE as error:
            raise EngineGone(str(error)) from error
        return answer

    async def check(self, policy: ServedPolicy | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = await self._handle.check.remote(policy)
        return answer

    async def alive(self) -> None:
        await self._handle.alive.remote()


@serve.deployment(name="Entrance", ray_actor_options={"num_cpus": 0})
@serve.ingress()
class Entrance:
    """Keys, limits, the draw, the follower. One replica: its limits and its memory of replies are its own."""

    def __init__(self, args: ServeArgs, engines: DeploymentHandle) -> None:
        log_as_serve_does()
        self._state = entrance_state(args, Handles(engines))

    def __serve_build_asgi_app__(self) -> Any:
        return create_app(self._state)

    async def ready(self) -> bool:
        return await self._state.ready()

    async def stop_accepting(self) -> None:
        """From here on new answers are refused, and the endpoint is not ready."""
        self._state.traffic.stopping = True

    async def ongoing(self) -> int:
        """Answers under way."""
        return self._state.traffic.ongoing


def entrance_state(args: ServeArgs, engines: Engines) -> EntranceState:
    """The entrance's state. Writes a run's first keys into its folder if it was never served."""
    served = find(args)
    store = Store(open_database(served.journal), served.run)
    settings = engine_settings(args, served, read_catalog(store).policies[0].version.path)
    limits = _measurable_limits(args, served.config)
    ApiKeys(store).first(Path(args.run))
    return EntranceState(
        store,
        args,
        engines,
        most=most_tokens(args, settings.max_model_len - 1),
        decoding=decoding_of(served.config),
        control=control_tokens(Path(settings.model)),
        mixture_max=mixture_max(args, settings),
        draw_secret=kept_secret(Path(args.run) / DRAW_KEY),
        limits=limits,
    )


def _measurable_limits(args: ServeArgs, config: Config) -> list[WatchedLimit]:
    """The limits that served answers are measured for; the log says which are not. Raises UserError where none is."""
    if not args.measure:
        return []
    with loaded_on("cpu"):  # an entrance reserves no GPU
        limits, reasons = watched_limits(config)
    for reason in reasons:
        logging.getLogger("deploy.serving").warning("served answers are not measured for %s", reason)
    if not limits:
        reason_text = "; ".join(reasons) or "it states none"
        raise UserError(f"--measure: no limit of this run can be measured on served answers: {reason_text}")
    return limits


def log_as_serve_does() -> None:
    """Sends our log lines to Serve's own log files."""
    deploy_log, serve_log = logging.getLogger("deploy"), logging.getLogger("ray.serve")
    deploy_log.setLevel(logging.INFO)
    for handler in serve_log.handlers:
        if handler not in deploy_log.handlers:
            deploy_log.addHandler(handler)


def build(args: ServeArgs | dict[str, Any]) -> Application:
    """The application for these arguments (a config file's `args`). Raises UserError when there is no run to serve."""
    args = ServeArgs.model_validate(args)
    args = args.model_copy(update={"run": str(Path(args.run).expanduser().absolute())})
    served = find(args)
    _measurable_limits(args, served.config)
    engine = open_to_read(served.journal)
    try:
        catalog = read_catalog(Store(engine, served.run))
    finally:
        engine.dispose()
    first = catalog.policies[0 if catalog.released is None else catalog.released]
    settings = engine_settings(args, served, catalog.policies[0].version.path)
    logs = LoggingConfig(encoding="JSON" if args.log_json else "TEXT")
    replica = EngineReplica.options(  # type: ignore[attr-defined]
        num_replicas=args.engines,
        ray_actor_options={"num_cpus": args.cpus, "num_gpus": args.gpus},
        health_check_period_s=HEALTH_S,
        health_check_timeout_s=max(60.0, args.request_s),
        graceful_shutdown_timeout_s=args.request_s,
        logging_config=logs,
    )
    entrance = Entrance.options(  # type: ignore[attr-defined]
        max_ongoing_requests=args.most_requests + CONTROL_MAX,
        max_queued_requests=args.waiting_max,
        graceful_shutdown_timeout_s=args.request_s,
        logging_config=logs,
        # It reserves nothing: the next one may start before this one stops. Engines may not fit twice.
        max_surge_percent=100,
    )
    application: Application = entrance.bind(args, replica.bind(settings, first, args.engines == 1))
    return application


def serve_forever(
    args: ServeArgs,
    *,
    host: str,
    port: int,
    address: str | None = None,
    route: str = "/",
    tls: tuple[Path, Path] | None = None,
) -> None:
    """Serves until it is told to stop (Ctrl-C, SIGTERM). `address`: a running cluster; None: a session of this machine.
    `route`: path before /v1, where several runs share the cluster's port. `tls`: files of certificate and key; None:
    plain http.

    Raises UserError when there is no run to serve, before anything is started; RunError where Serve does not start.
    """
    application = build(args)
    name = application_name(Path(args.run), shared=address is not None)
    # Ray's processes inherit it; a cluster has it from its image.
    os.environ.setdefault(CALLBACK_VARIABLE, CALLBACK)
    with ray_session(f"pddpo-serve/{Path(args.run).name}", address=address, dashboard=True):
        files = {} if tls is None else {"ssl_certfile": str(tls[0]), "ssl_keyfile": str(tls[1])}
        # Only here: ray.init puts handlers of its own in place of those that it finds.
        with ended_by_sigterm():
            start_proxy({"host": host, "port": port, **files})
        try:
            with ended_by_sigterm():
                entrance = deployed(application, name, route)
                while not entrance.ready.remote().result():
                    time.sleep(WATCH_S)
            with StopSignals() as signals:
                print(f"ready: http{'s' if tls else ''}://{host}:{port}{route.rstrip('/')}/v1", flush=True)
                signals.wait()
                let_finish(entrance, signals, args.request_s)
        finally:
            if address:  # its proxies serve other applications too
                serve.delete(name)
            else:
                close_port()
                serve.shutdown()


def start_proxy(options: dict[str, Any]) -> None:
    """Starts Serve's proxy. Raises RunError where it is not up in time, as on a busy machine."""
    try:
        serve.start(http_options=options)
    except RayActorError as error:
        raise RunError(
            f"Ray Serve did not begin to listen on {options['host']}:{options['port']} in its time: this machine may be"
            " too busy; give the command again"
        ) from error


def application_name(run: Path, *, shared: bool) -> str:
    """Serve's name of a run's application. `shared`: on a cluster, where runs whose folders have one name must not take
    each other's place; the same run keeps its name, so that it is deployed anew in place."""
    name = f"{APPLICATION}-{run.name}"
    return f"{name}-{hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:8]}" if shared else name


def deployed(application: Application, name: str, route: str) -> Any:
    """The running application's handle. Raises UserError where another application has the route."""
    try:
        return serve.run(application, name=name, route_prefix=route)
    except RayServeException as error:
        match = re.search(r"is being used by application \"([^\"]*)\"", str(error))
        if match is None:
            raise
        raise UserError(
            f"--route {route}: the application {match[1]} of this cluster answers there; give another, e.g."
            f" --route /{name}"
        ) from None


def close_port() -> None:
    """Ends the proxies. Serve's own shutdown removes the application first and answers 404 for a while, which clients
    take for a mistake of theirs and do not try again."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["name"].startswith(PROXY):
            ray.kill(ray.get_actor(actor["name"], namespace=actor["namespace"]))
