from __future__ import annotations

import asyncio

import pytest

from gateway.concurrency.live_set import LiveSet

pytestmark = pytest.mark.asyncio


async def test_an_empty_set_is_not_waited_for() -> None:
    async with asyncio.timeout(5):
        await LiveSet[int]().wait_empty()


async def test_the_last_one_ends_the_wait_of_all() -> None:
    live = LiveSet[int]()
    live.add(1)
    live.add(2)
    waiting = [asyncio.create_task(live.wait_empty()) for _ in range(2)]
    live.discard(1)
    live.discard(3)
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    live.discard(2)
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting)


async def test_who_comes_before_the_waiter_runs_is_waited_for() -> None:
    live = LiveSet[int]()
    live.add(1)
    waiting = asyncio.create_task(live.wait_empty())
    await asyncio.sleep(0)
    live.discard(1)
    live.add(2)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    live.discard(2)
    async with asyncio.timeout(5):
        await waiting
