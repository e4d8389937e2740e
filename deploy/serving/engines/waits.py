"""Ends what waits for an engine when the engine dies: vLLM never answers the calls under way at its death."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from deploy.serving.engines.engine import EngineGone


class Mortal(Protocol):
    @property
    def dead(self) -> bool: ...


E = TypeVar("E", bound=Mortal)
DEAD = "vLLM has died"


class Waits:
    """All requests that wait for the engine of one replica."""

    def __init__(self) -> None:
        self._waits: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def on(self, engine: E) -> AsyncIterator[E]:
        """The engine while it lives. Raises EngineGone where it is dead or dies in the block, in place of any error
        that its death causes."""
        if engine.dead:
            raise EngineGone(DEAD)
        try:
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    yield engine
                finally:
                    self._waits.discard(wait)
        except Exception as error:
            if engine.dead:
                raise EngineGone(f"{DEAD}: {error}") from None
            raise

    def end(self) -> None:
        """The engine is dead: nobody waits for it any longer."""
        for wait in self._waits:
            wait.reschedule(asyncio.get_running_loop().time())
