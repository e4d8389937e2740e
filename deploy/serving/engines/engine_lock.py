"""Whose turn it is on an engine that holds one policy at a time.

Requests of the policy that is loaded run together. As soon as somebody waits for another policy, later requests queue
behind; when the last running one has ended, the policy that waited longest is loaded and all that wait for it are
let in as one batch. So requests are batched by their drawn round, nobody starves, and weights never change under a
running request.

    async with gate.hold(policy):
        ...generate
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from pddpo_ray.serving.catalog import ServedPolicy

Key = tuple[int, str]


class Gate:
    """`load` brings a policy into the engine; while it runs nothing else does."""

    def __init__(self, load: Callable[[ServedPolicy], Awaitable[None]]) -> None:
        self._load = load
        self._waiting: dict[Key, list[tuple[ServedPolicy, asyncio.Future[None]]]] = {}
        self._holder_count = 0
        self._loading: asyncio.Task[None] | None = None
        self.current: ServedPolicy | None = None
        self.loads = 0

    @asynccontextmanager
    async def hold(self, policy: ServedPolicy) -> AsyncIterator[None]:
        """The policy is loaded from here to the end of the block. Raises what `load` raised."""
        await self._enter(policy)
        try:
            yield
        finally:
            self._holder_count -= 1
            self._turn()

    async def _enter(self, policy: ServedPolicy) -> None:
        loaded = self.current is not None and key_of(self.current) == key_of(policy)
        if loaded and not self._waiting and self._loading is None:
            self._holder_count += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key_of(policy), []).append((policy, turn))
        self._turn()
        try:
            await turn
        except asyncio.CancelledError:
            self._give_up(key_of(policy), turn)
            raise

    def _give_up(self, key: Key, turn: asyncio.Future[None]) -> None:
        """A client left while it waited, or in the very moment in which it was let in."""
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self._holder_count -= 1
            self._turn()
            return
        entries = [entry for entry in self._waiting.get(key, []) if entry[1] is not turn]
        if entries:
            self._waiting[key] = entries
        else:
            self._waiting.pop(key, None)

    def _turn(self) -> None:
        """Starts the next batch if the engine is free."""
        if self._holder_count or self._loading is not None or not self._waiting:
            return
        key = next(iter(self._waiting))
        self._loading = asyncio.get_running_loop().create_task(self._switch(key, self._waiting[key][0][0]))

    async def _switch(self, key: Key, policy: ServedPolicy) -> None:
        failure: BaseException | None = None
        try:
            if self.current is None or key_of(self.current) != key:
                self.current = None
                await self._load(policy)
                self.current = policy
                self.loads += 1
        except Exception as error:
            failure = error
        self._loading = None
        for _, turn in self._waiting.pop(key, []):
            if turn.done():
                continue
            if failure is not None:
                turn.set_exception(failure)
            else:
                self._holder_count += 1
                turn.set_result(None)
        self._turn()


def key_of(policy: ServedPolicy) -> Key:
    return policy.version.number, policy.version.sha256
