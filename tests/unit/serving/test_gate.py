"""The gate: one policy at a time, batches, nobody starves, nobody who left holds it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from deploy.serving.engines.engine_lock import Gate
from pddpo_ray.records import PolicyVersion
from pddpo_ray.serving.catalog import ServedPolicy

ONE, TWO, THREE = (
    ServedPolicy(k, PolicyVersion(2 * k, f"policy-{k}", f"sha-{k}", f"policy-{k}"), None, "undecided")
    for k in (1, 2, 3)
)


class GatedEngine:
    """Counts who is inside; loading takes a moment."""

    def __init__(self, fail: set[int] | None = None) -> None:
        self.inside: list[int] = []
        self.order: list[int] = []
        self.fail = fail or set()
        self.gate = Gate(self.load)

    async def load(self, policy: ServedPolicy) -> None:
        assert self.inside == [], "weights were exchanged under a running request"
        await asyncio.sleep(0.001)
        if policy.round in self.fail:
            raise ValueError(f"round {policy.round} is broken")
        self.order.append(policy.round)

    async def visit(self, policy: ServedPolicy, seconds: float = 0.002) -> None:
        async with self.gate.hold(policy):
            self.inside.append(policy.round)
            try:
                assert set(self.inside) == {policy.round}
                await asyncio.sleep(seconds)
                assert self.gate.current is policy
            finally:
                self.inside.remove(policy.round)


def test_mixed_requests_become_one_batch_per_policy() -> None:
    async def story() -> GatedEngine:
        engine = GatedEngine()
        await asyncio.gather(*(engine.visit(policy) for _ in range(30) for policy in (ONE, TWO, THREE)))
        return engine

    engine = asyncio.run(story())
    assert engine.order == [1, 2, 3]
    assert engine.gate.loads == 3


def test_a_policy_that_is_waited_for_is_served_although_another_is_asked_for_all_the_time() -> None:
    async def story() -> float:
        engine = GatedEngine()
        stop = asyncio.Event()

        async def flood() -> None:
            while not stop.is_set():
                await engine.visit(ONE)

        floods = [asyncio.create_task(flood()) for _ in range(5)]
        await asyncio.sleep(0.01)
        for _ in range(10):
            await asyncio.wait_for(engine.visit(TWO), timeout=5)
        stop.set()
        await asyncio.gather(*floods)
        return engine.gate.loads

    assert asyncio.run(story()) >= 10


def test_a_client_that_leaves_while_it_waits_or_runs_blocks_nobody() -> None:
    async def story() -> list[int]:
        engine = GatedEngine()
        running = asyncio.create_task(engine.visit(ONE, 10))
        await asyncio.sleep(0.01)
        waiting = [asyncio.create_task(engine.visit(policy)) for policy in (TWO, TWO, THREE)]
        await asyncio.sleep(0.01)
        for task in (waiting[0], waiting[1], running):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.wait_for(waiting[2], timeout=5)
        return engine.order

    assert asyncio.run(story()) == [1, 3]


def test_a_client_that_leaves_in_the_moment_it_is_let_in_blocks_nobody() -> None:
    async def story() -> None:
        engine = GatedEngine()
        for _ in range(50):
            visits = [asyncio.create_task(engine.visit(policy, 0)) for policy in (ONE, TWO, ONE, THREE)]
            for steps, task in enumerate(visits):
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.gather(*visits, return_exceptions=True)
        await asyncio.wait_for(engine.visit(TWO), timeout=5)

    asyncio.run(story())


def test_a_policy_that_cannot_be_loaded_fails_its_own_requests_and_no_others() -> None:
    async def story() -> list[object]:
        engine = GatedEngine(fail={2})
        await engine.visit(ONE)
        found: list[object] = await asyncio.gather(
            *(engine.visit(policy) for policy in (TWO, ONE, TWO, THREE)), return_exceptions=True
        )
        assert engine.order == [1, 1, 3]
        return found

    found = asyncio.run(story())
    assert [isinstance(each, ValueError) for each in found] == [True, False, True, False]


def test_the_policy_that_is_loaded_is_not_loaded_again() -> None:
    async def story() -> int:
        engine = GatedEngine()
        for _ in range(3):
            await engine.visit(ONE)
        return engine.gate.loads

    assert asyncio.run(story()) == 1
    with pytest.raises(ValueError, match="broken"):
        asyncio.run(GatedEngine(fail={1}).visit(ONE))
