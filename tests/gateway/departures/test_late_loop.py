from __future__ import annotations

import asyncio
import contextvars
import gc
import time
import warnings
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.gateway.departures.late_loop import late_loop

VARIABLE = contextvars.ContextVar[int]("VARIABLE")


def run(main: Coroutine[Any, Any, Any], *, rate: float, is_uvloop: bool = False) -> Any:
    with asyncio.Runner(loop_factory=lambda: late_loop(3, rate=rate, is_uvloop=is_uvloop)) as it:
        return it.run(main)


async def turns() -> list[tuple[int, int]]:
    """Of four tasks, with each one's count of its own."""
    order: list[tuple[int, int]] = []

    async def one(number: int) -> None:
        VARIABLE.set(number)
        for count in range(10):
            await asyncio.sleep(0)
            assert VARIABLE.get() == number
            order.append((number, count))

    await asyncio.gather(*(one(number) for number in range(4)))
    return order


@pytest.mark.parametrize("is_uvloop", [False, True])
def test_tasks_take_other_turns_and_keep_their_own_order(is_uvloop: bool) -> None:
    in_order = run(turns(), rate=0.0, is_uvloop=is_uvloop)
    assert in_order == sorted(in_order, key=lambda turn: (turn[1], turn[0]))
    late = run(turns(), rate=0.5, is_uvloop=is_uvloop)
    assert late != in_order
    for number in range(4):
        assert [count for who, count in late if who == number] == list(range(10))


def test_nobody_waits_for_time_to_pass() -> None:
    async def sleep() -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.sleep(3600.0)
        return loop.time() - begun

    begun = time.monotonic()
    assert run(sleep(), rate=0.5) >= 3600.0
    assert time.monotonic() - begun < 60.0


def test_what_runs_in_a_thread_is_waited_for() -> None:
    async def race() -> str:
        working = asyncio.ensure_future(asyncio.to_thread(time.sleep, 0.05))
        async with asyncio.timeout(3600.0):
            await working
        return "in time"

    assert run(race(), rate=0.5) == "in time"


async def _connect_and_close() -> bytes:
    """What a client reads of a server that closes while it connects."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    connecting = asyncio.create_task(asyncio.open_connection(*server.sockets[0].getsockname()[:2]))
    while not connecting.done():  # noqa: ASYNC110 (turn by turn)
        await asyncio.sleep(0)
    server.close()
    reader, writer = await connecting
    try:
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.transport.abort()


def test_a_server_that_closes_leaves_no_connection_open() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(30):
            assert run(_connect_and_close(), rate=0.9) == b""
        gc.collect()
    assert not caught
