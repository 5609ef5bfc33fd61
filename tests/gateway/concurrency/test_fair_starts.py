from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from gateway.concurrency.fair_starts import FairStarts

pytestmark = pytest.mark.asyncio


async def test_many_requests_of_one_tenant_hold_up_nobody_else() -> None:
    starts, order = FairStarts(), list[str]()
    busy, quiet = uuid4(), uuid4()

    async def request(name: str) -> None:
        await starts.next(busy if name.startswith("busy") else quiet)
        order.append(name)

    tasks = [asyncio.create_task(request(f"busy {number}")) for number in range(20)]
    await asyncio.sleep(0)
    await asyncio.create_task(request("quiet"))
    assert order.index("quiet") <= 2
    await asyncio.gather(*tasks)
    assert [name for name in order if name != "quiet"] == [f"busy {i}" for i in range(20)]
    await asyncio.sleep(0)
    assert len(starts) == 0


async def test_one_after_the_other_they_never_wait() -> None:
    starts, tenant = FairStarts(), uuid4()
    for _ in range(10):
        taking = starts.next(tenant)
        with pytest.raises(StopIteration):
            taking.send(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_who_leaves_takes_no_turn() -> None:
    starts, tenant = FairStarts(), uuid4()
    tasks = [asyncio.create_task(starts.next(tenant)) for _ in range(10)]
    await asyncio.sleep(0)
    for task in tasks[1:9]:
        task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert tasks[9].done()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    assert len(starts) == 0


async def test_in_a_turn_one_request_of_each_tenant_begins() -> None:
    starts, tenants, turns = FairStarts(), [uuid4(), uuid4()], list[list[int]]()

    async def request(number: int) -> None:
        await starts.next(tenants[number])
        turns[-1].append(number)

    async def take_turns() -> None:
        while any(not task.done() for task in tasks):
            turns.append([])
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(request(number)) for number in (0, 0, 0, 1, 1)]
    await take_turns()
    assert [turn for turn in turns if turn] == [[0, 1], [0, 1], [0]]
    await asyncio.sleep(0)
    assert len(starts) == 0
