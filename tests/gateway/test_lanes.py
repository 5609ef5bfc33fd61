from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from gateway.lanes import Lanes

pytestmark = pytest.mark.asyncio


async def test_turns_of_one_tenant_come_one_by_one_and_others_pass() -> None:
    lanes, busy, quiet = Lanes(), uuid4(), uuid4()
    gate = asyncio.Event()
    done: list[str] = []

    async def work(name: str) -> None:
        async with lanes.turn(busy):
            await gate.wait()
            done.append(name)

    tasks = [asyncio.create_task(work(name)) for name in "abc"]
    await asyncio.sleep(0)
    async with asyncio.timeout(5), lanes.turn(quiet):
        done.append("quiet")
    assert len(lanes) == 1
    gate.set()
    await asyncio.gather(*tasks)
    assert done == ["quiet", "a", "b", "c"]
    assert len(lanes) == 0


async def test_those_that_give_up_or_fail_leave_nothing() -> None:
    lanes, tenant = Lanes(), uuid4()
    with pytest.raises(ValueError, match="no"):
        async with lanes.turn(tenant):
            raise ValueError("no")
    async with lanes.turn(tenant):
        waiting = asyncio.create_task(lanes.turn(tenant).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert len(lanes) == 0
