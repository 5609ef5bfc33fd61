from __future__ import annotations

import asyncio
from itertools import product
from uuid import uuid4

import pytest

from gateway.streams.log import StreamLog
from gateway.streams.record import MAX_READ_ITEMS, Cursor

pytestmark = pytest.mark.asyncio

ACME = uuid4()


async def opened() -> StreamLog:
    """The log of a stream "s"."""
    log = StreamLog(max_stream_bytes=10**6, max_tenant_bytes=10**7, retention_s=60.0)
    await log.create("s", ACME, "sse")
    return log


async def follow(log: StreamLog, found: list[bytes], *, takes: bool) -> None:
    """Read all items, or take them as they come."""

    def take(item: bytes, now: float) -> bool:
        found.append(item)
        return True

    cursor = Cursor(0, take if takes else None)
    while items := await log.read("s", cursor):
        found += items


@pytest.mark.parametrize("takes", list(product([False, True], repeat=3)))
async def test_however_many_wait_each_gets_each_item_once(takes: tuple[bool, ...]) -> None:
    """Whoever comes second takes nothing away from the first."""
    log = await opened()
    found: list[list[bytes]] = [[] for _ in takes]
    items = [b"%d" % number for number in range(8)]
    reading = []
    for index, taking in enumerate(takes):
        reading.append(asyncio.create_task(follow(log, found[index], takes=taking)))
        await asyncio.sleep(0)
        log.append("s", items[2 * index : 2 * index + 2])
        await asyncio.sleep(0)
    log.append("s", items[6:])
    await log.end("s")
    await asyncio.wait_for(asyncio.gather(*reading), 5)
    assert found == [items] * len(takes)


async def test_a_stream_is_silent_from_its_beginning_on() -> None:
    """So that the time until its first heartbeat is known."""
    before = asyncio.get_running_loop().time()
    log = await opened()
    began = log.appended_at("s")
    assert before <= began <= asyncio.get_running_loop().time()
    await asyncio.sleep(0.01)
    log.append("s", [b"x"])
    assert log.appended_at("s") >= began + 0.009


async def test_a_long_stream_is_read_in_parts() -> None:
    log = await opened()
    items = [b"%d" % number for number in range(2 * MAX_READ_ITEMS + 1)]
    log.append("s", items)
    cursor = Cursor(0)
    parts = [await log.read("s", cursor) for _ in range(3)]
    assert [len(part) for part in parts] == [MAX_READ_ITEMS, MAX_READ_ITEMS, 1]
    assert [item for part in parts for item in part] == items
