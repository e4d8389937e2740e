"""The mailbox's rules, in one process and without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from actors.mailbox import STOP, Mailbox, Outcome, Worker

FIRST, SECOND, AGAIN = Worker(0, 100, "a"), Worker(1, 101, "b"), Worker(1, 202, "c")


def run(script: Coroutine[Any, Any, None]) -> None:
    asyncio.run(script)


async def group() -> Mailbox:
    mailbox = Mailbox(ranks=2)
    await mailbox.hello(FIRST)
    await mailbox.hello(SECOND)
    return mailbox


def test_a_command_goes_to_every_rank_once_and_ends_with_rank_zeros_value() -> None:
    async def script() -> None:
        mailbox = await group()
        assert await mailbox.ready(0.1)
        assert await mailbox.next(FIRST, 0.01) is None
        await mailbox.submit(1, "fit")
        for worker in (SECOND, FIRST):
            assert await mailbox.result(1, 0.01) is None
            assert await mailbox.next(worker, 0.1) == (1, "fit")
            await mailbox.answer(1, worker, Outcome(f"from {worker.rank}"))
            assert await mailbox.next(worker, 0.01) is None
        assert await mailbox.result(1, 0.1) == Outcome("from 0")

    run(script())


def test_a_restarted_rank_gets_the_unfinished_command_again() -> None:
    async def script() -> None:
        mailbox = await group()
        await mailbox.submit(1, "fit")
        await mailbox.answer(1, FIRST, Outcome("early"))
        await mailbox.hello(AGAIN)
        assert await mailbox.waiting_for() == [1]
        assert await mailbox.next(AGAIN, 0.1) == (1, "fit")
        await mailbox.answer(1, SECOND, Outcome("from the dead"))
        assert await mailbox.result(1, 0.01) is None
        await mailbox.answer(1, AGAIN, Outcome())
        assert await mailbox.result(1, 0.1) == Outcome("early")
        assert await mailbox.restarts() == 1

    run(script())


def test_a_rank_that_restarts_after_the_command_waits_for_the_next_one() -> None:
    async def script() -> None:
        mailbox = await group()
        await mailbox.submit(1, "fit")
        await mailbox.answer(1, FIRST, Outcome())
        await mailbox.answer(1, SECOND, Outcome())
        await mailbox.hello(AGAIN)
        assert await mailbox.next(AGAIN, 0.01) is None
        await mailbox.submit(2, "score")
        assert await mailbox.next(AGAIN, 0.1) == (2, "score")

    run(script())


def test_one_ranks_error_settles_the_command_although_the_others_hang() -> None:
    async def script() -> None:
        mailbox = await group()
        await mailbox.submit(1, "fit")
        await mailbox.answer(1, SECOND, Outcome(error="ValueError", message="no rows"))
        assert await mailbox.result(1, 0.1) == Outcome(error="ValueError", message="no rows")

    run(script())


def test_submitting_a_number_again_changes_nothing_and_an_unfinished_command_is_not_overwritten() -> None:
    async def script() -> None:
        mailbox = await group()
        await mailbox.submit(1, "fit")
        await mailbox.answer(1, FIRST, Outcome())
        await mailbox.submit(1, "fit")
        assert await mailbox.waiting_for() == [1]
        with pytest.raises(RuntimeError, match="command 2 was submitted while 1"):
            await mailbox.submit(2, "other")

    run(script())


def test_stop_ends_a_waiting_rank() -> None:
    async def script() -> None:
        mailbox = await group()
        waiting = asyncio.create_task(mailbox.next(FIRST, 5.0))
        await asyncio.sleep(0)
        await mailbox.stop()
        assert await waiting == (STOP, None)

    run(script())


def test_lines_of_a_rank_are_handed_on_once_and_in_order() -> None:
    async def script() -> None:
        mailbox = await group()
        assert await mailbox.said() == []
        await mailbox.say("policy-1: step 1 of 6")
        await mailbox.say("policy-1: step 4 of 6")
        assert await mailbox.said() == ["policy-1: step 1 of 6", "policy-1: step 4 of 6"]
        assert await mailbox.said() == []

    run(script())
