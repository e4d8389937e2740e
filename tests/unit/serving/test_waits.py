"""Nobody waits for a dead engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import pytest

from deploy.serving.engines.engine import EngineGone
from deploy.serving.engines.waits import Waits


@dataclass
class Engine:
    dead: bool = False


async def pieces(waits: Waits, engine: Engine) -> AsyncGenerator[str, None]:
    async with waits.on(engine):
        yield "a piece"
        await asyncio.Event().wait()


def test_who_waits_for_an_engine_that_dies_is_told_so_at_once() -> None:
    """A stream after its first piece and a call, neither of which the engine ever ends."""

    async def story() -> list[str]:
        waits, engine = Waits(), Engine()

        async def stream() -> list[str]:
            return [piece async for piece in pieces(waits, engine)]

        async def call() -> None:
            async with waits.on(engine):
                await asyncio.Event().wait()

        asked = [asyncio.create_task(stream()), asyncio.create_task(call())]
        await asyncio.sleep(0)
        engine.dead = True
        waits.end()
        ends = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), timeout=5)
        return [type(end).__name__ for end in ends]

    assert asyncio.run(story()) == ["EngineGone", "EngineGone"]


def test_errors_of_a_living_engine_stay_what_they_are_and_a_dead_one_is_not_asked() -> None:
    async def fail(engine: Engine, *, dies: bool) -> None:
        async with Waits().on(engine):
            engine.dead = dies
            raise ValueError("a bad request")

    with pytest.raises(ValueError, match="a bad request"):
        asyncio.run(fail(Engine(), dies=False))
    with pytest.raises(EngineGone, match="a bad request"):
        asyncio.run(fail(Engine(), dies=True))
    with pytest.raises(EngineGone):
        asyncio.run(fail(Engine(dead=True), dies=True))
