"""What every route works with: the catalogue that follows the run, keys and their limits, engines, recent replies."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from deploy.serving.engines.engine import Piece, TokensCall
from deploy.serving.kept_prompts import KeptPrompts
from deploy.serving.measured_traffic import MeasuredTraffic, WatchedLimit
from deploy.serving.metrics import ServingMetrics
from deploy.serving.request_fields import Kind
from deploy.serving.settings import ServeArgs
from deploy.serving.tracing import Traces
from deploy.serving.traffic import HANGS_S, Traffic
from deploy.web.http_errors import ApiError
from deploy.web.request_limits import RateLimit
from pddpo_ray.annotation.notifications import send
from pddpo_ray.certificates.release_history import ALARM, Releases
from pddpo_ray.journal.served import Caps
from pddpo_ray.journal.tokens import hashed
from pddpo_ray.journal.transactions import Store
from pddpo_ray.serving.alarms import Watched, released_weights
from pddpo_ray.serving.catalog import Catalog, ServedPolicy, Stamp, read_catalog, stamp_of
from pddpo_ray.serving.keys import ApiKey, ApiKeys, Scope
from pddpo_ray.serving.scrubbing import scrubber
from pddpo_ray.theory.certificates.alarm import Alarm

logger = logging.getLogger("deploy.serving")

RETRY_S = 60.0
"""A released policy that could not be loaded is tried again after so long, or when the journal changes."""
PULSE_S = 0.5
"""How often engines are asked whether they live."""
READY_S = 5.0
"""A readiness check within this time of the last one is answered with its outcome."""


class Engines(Protocol):
    """The engine replicas as the entrance sees them."""

    def respond(
        self, kind: Kind, policy: ServedPolicy, body: dict[str, Any], trace: str = ""
    ) -> AsyncGenerator[Piece, None]: ...

    async def tokens(self, way: TokensCall, body: dict[str, Any]) -> dict[str, Any]: ...

    async def check(self, policy: ServedPolicy | None = None) -> dict[str, Any]: ...

    async def alive(self) -> None: ...


@dataclass(frozen=True)
class Reply:
    """What a reader may give feedback on; kept in memory only."""

    key: str
    question: str
    answer: str
    policy: ServedPolicy
    model: str


class EntranceState:
    """State of one entrance.

    most: longest answer in tokens. decoding: how the run draws its answers. control: texts of the model's special
    tokens.
    """

    def __init__(
        self,
        store: Store,
        args: ServeArgs,
        engines: Engines,
        *,
        most: int,
        decoding: Mapping[str, Any],
        control: Sequence[str] = (),
        mixture_max: int | None = None,
        draw_secret: str = "",
        limits: Sequence[WatchedLimit] = (),
    ) -> None:
        self.store, self.args, self.engines = store, args, engines
        self.most, self.decoding, self.control = most, decoding, tuple(control)
        self.traffic = Traffic(args.most_requests)
        self.metrics = ServingMetrics(store.run)
        self.traces = Traces(args.traces, store.run)
        self.measured = MeasuredTraffic(store, limits, args.measure, self.metrics, self._take_back_release)
        caps = Caps(args.keep_per_key, args.keep_total)
        rules = scrubber(None if args.scrub is None else Path(args.scrub))
        self.kept = KeptPrompts(store, args.keep, rules, caps, self.metrics)
        self.releases = Releases(store)
        self.draw_secret = draw_secret
        self._mixture_max = mixture_max
        self.catalog = read_catalog(store, mixture_max)
        self._keys: Mapping[str, ApiKey] = ApiKeys(store).valid()
        self._limits: dict[ApiKey, tuple[RateLimit, RateLimit]] = {}
        self._stranger_limit = RateLimit(0.5, 20.0, time.monotonic)
        self._replies: OrderedDict[str, Reply] = OrderedDict()
        self._follow_lock = asyncio.Lock()
        self._last_check: tuple[float, bool] = (-READY_S, False)
        self._failure: tuple[Stamp, float] | None = None

    async def follow(self) -> None:
        """Calls `look` every `follow_s`; a call that fails is logged and changes nothing."""
        while True:
            await asyncio.sleep(self.args.follow_s)
            try:
                await self.look()
            except Exception:
                logger.exception("the endpoint stays with what it serves")

    async def watch(self) -> None:
        """Checks every `PULSE_S` whether the engines are alive."""
        while True:
            await self.pulse()
            await asyncio.sleep(PULSE_S)

    async def pulse(self) -> None:
        try:
            async with asyncio.timeout(HANGS_S):
                await self.engines.alive()
        except TimeoutError:
            self.traffic.silent()
        except Exception as error:
            if self.traffic.open:
                logger.error("an engine is gone: %s", error)
            self.lost()
        else:
            self.traffic.came_back()

    def lost(self) -> None:
        """An engine is dead: accepts nothing, and forgets the last readiness check."""
        self.traffic.lost()
        self._last_check = (-READY_S, False)

    async def look(self) -> None:
        """Takes over what changed in the journal. A round that is newly released answers a check of its own first, so
        no request meets a policy that cannot be loaded; requests in progress keep the policy they began with."""
        async with self._follow_lock:
            self._keys = await asyncio.to_thread(ApiKeys(self.store).valid)
            if (stage := self.catalog.stage) is not None and stage.whole_ms <= self.store.clock():
                await asyncio.to_thread(self.releases.finish_stage)
            stamp = await asyncio.to_thread(stamp_of, self.store)
            if stamp == self.catalog.stamp or (self._failure and self._failure[0] == stamp and not self._retry()):
                return
            catalog = await asyncio.to_thread(read_catalog, self.store, self._mixture_max)
            for number in _newly_served_rounds(self.catalog, catalog):
                self._failure = (catalog.stamp, time.monotonic())
                self.metrics.undelivered(True)
                await self.engines.check(catalog.policies[number])
            self._failure = None
            self.metrics.undelivered(False)
            previous, self.catalog = self.catalog, catalog
            if catalog.released != previous.released:
                logger.info("run %s: released is round %s, was %s", catalog.run, catalog.released, previous.released)
            if catalog.stage is not None and catalog.stage != previous.stage:
                logger.info("run %s: round %d answers a growing share", catalog.run, catalog.stage.round)
                if not self.measured.watches:
                    logger.warning("nothing measures its answers, so no alarm stops it: start with --measure")

    def _take_back_release(self, watched: Watched, alarm: Alarm) -> None:
        """Takes the release back, journals it and tells the webhook; the follower takes it over."""
        key, count = self.measured.most_of(watched.sha256)
        reason = f"alarm: {watched.limit} is broken by what {alarm.answers} measured answers say"
        reason += f"; of those since the start most, {count}, went to key {key!r}"
        stage = self.catalog.stage
        if stage is not None and self.catalog.policies[stage.round].version.sha256 == watched.sha256:
            now = self.releases.unstage(stage.round, by=ALARM, reason=reason)
        elif released_weights(self.catalog) == watched.sha256:
            now = self.releases.withdraw(self.catalog.released, reason=reason)
        else:
            return  # something else is released by now
        self.metrics.rang()
        serves = "the reference" if now.current is None else f"round {now.current}"
        logger.error("run %s: %s; now %s is served", self.store.run, reason, serves)
        if self.args.webhook:
            text = f"run {self.store.run}: {reason}; now {serves} is served"
            message = {"text": text, "run": self.store.run, "limit": watched.limit, "answers": alarm.answers}
            send(self.args.webhook, "alarm", {**message, "served": serves})

    def _retry(self) -> bool:
        return self._failure is not None and time.monotonic() - self._failure[1] > RETRY_S

    async def ready(self) -> bool:
        """Whether requests are accepted and an engine just gave a real token from the version that it should; engines
        are asked at most every few seconds."""
        if not self.traffic.open:
            return False
        now = time.monotonic()
        if now - self._last_check[0] >= READY_S:
            self._last_check = (now, self._last_check[1])
            try:
                async with asyncio.timeout(self.args.request_s):
                    await self.engines.check()
                self._last_check = (now, True)
            except Exception as error:
                logger.error("no engine is ready: %s", error)
                self._last_check = (now, False)
        return self._last_check[1] and self.traffic.open

    def recognise(self, secret: str | None, address: str) -> ApiKey:
        """The key of a request. Raises ApiError 401; strangers are slowed down by address."""
        key = None if secret is None else self._keys.get(hashed(secret))
        if key is None:
            self.metrics.refused(401)
            self._stranger_limit.take(address)
            raise ApiError(401, "a valid API key is needed: send it as `Authorization: Bearer KEY`")
        return key

    def demand(self, key: ApiKey, scope: Scope) -> None:
        if not key.scope.covers(scope):
            raise ApiError(403, f"key {key.name!r} has scope {key.scope.value}; this needs {scope.value}")

    def reserve(self, key: ApiKey, tokens: float) -> None:
        """One request and the tokens that it may use. Raises ApiError 429."""
        requests, budget = self._limits_of(key)
        if tokens > key.tokens_per_minute:
            limit = f"key {key.name!r} has {key.tokens_per_minute:.0f} a minute"
            raise ApiError(429, f"this request may use {tokens:.0f} tokens, {limit}: ask for fewer")
        requests.take(key.name)
        budget.take(key.name, tokens)

    def settle(self, key: ApiKey, reserved: float, used: float) -> None:
        """Gives back what was reserved and not used."""
        self._limits_of(key)[1].give_back(key.name, reserved - used)

    def _limits_of(self, key: ApiKey) -> tuple[RateLimit, RateLimit]:
        if key not in self._limits:
            self._limits[key] = tuple(  # type: ignore[assignment]
                RateLimit(minute / 60, max(1.0, minute), time.monotonic, unit)
                for minute, unit in ((key.requests_per_minute, "requests"), (key.tokens_per_minute, "tokens"))
            )
        return self._limits[key]

    def remember(self, id_: str, reply: Reply) -> None:
        self._replies[id_] = reply
        while len(self._replies) > self.args.feedback_memory:
            self._replies.popitem(last=False)

    def reply(self, id_: str, key: ApiKey) -> Reply | None:
        """A recent reply, to its receiver (or an administrator)."""
        reply = self._replies.get(id_)
        return reply if reply is not None and (reply.key == key.name or key.scope is Scope.ADMIN) else None

    def forget(self, id_: str, key: str) -> None:
        """Nobody can name this reply any more, or without an id those of the key."""
        self._replies = OrderedDict(
            (name, reply) for name, reply in self._replies.items() if name != id_ and (id_ or reply.key != key)
        )


def _newly_served_rounds(previous: Catalog, catalog: Catalog) -> list[int]:
    """Rounds that begin to answer: a newly released one, and one whose release begins."""
    old = {previous.released, previous.stage.round if previous.stage else None}
    new = [catalog.released, catalog.stage.round if catalog.stage else None]
    return [number for number in new if number is not None and number not in old]


def most_tokens(args: ServeArgs, context: int) -> int:
    """Longest answer that may be asked for."""
    return min(args.max_tokens or context, context)
