"""The network between a gateway and an engine of another host loses everything for a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from engine import sockets
from engine.client.fleet import Fleet
from tests.engine.stand_in import Trap
from tests.gateway.fleet.test_registry import (
    following,
    hosted,
    names,
    quickly,
    read,
    request,
    until,
)
from tests.memory_store.store import MemoryStore

__all__ = ["quickly"]
pytestmark = pytest.mark.asyncio


class Link:
    """A way to an address that can be cut: then nothing comes through, in either direction, and
    nobody is told."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._port = int(port)
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        for way in (self._carry(reader, far_writer), self._carry(far_reader, writer)):
            task = asyncio.create_task(way)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[str]:
        """Its own address."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            yield f"tcp://127.0.0.1:{port}"
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


def idle(fleet: Fleet) -> bool:
    return fleet.num_streams == 0 and not len(fleet.moves)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("cut_s", "moves"),
    [(3.0, False), (10.0, None), (15.0, True)],
    ids=["shorter than the silence", "as long, so either may be", "longer"],
)
async def test_a_link_that_is_cut_for_a_while(cut_s: float, moves: bool | None) -> None:
    assert sockets.SILENCE_MS == 10_000
    shared = MemoryStore().shared
    async with following(shared) as (fleet, _), hosted(shared) as one, hosted(shared) as two:
        link = Link(one.address)
        async with link.opened() as address:
            one.address = address
            one._begin_epoch()
            one.engine.lose("it gets another address")
            await until(lambda: names(fleet) == {one.id, two.id})
            # 50 ms a token.
            slow = [request(str(i), 600) for i in range(4)]
            for asked in slow:
                asked.prompt_token_ids[0] = Trap.SLOW
            streams = [fleet.submit(asked) for asked in slow]
            first = [await anext(stream) for stream in streams]
            link.cut()
            await asyncio.sleep(cut_s)
            link.mend()
            rest = await asyncio.gather(*map(read, streams))
            tokens = [a.new_token_ids + b for a, b in zip(first, rest, strict=True)]
            assert [len(each) for each in tokens] == [600] * 4
            assert len({tuple(each) for each in tokens}) == 1
            assert moves is None or (fleet.moves.num_moved > 0) is moves
            assert fleet.moves.num_failed == 0
            assert idle(fleet)
            await until(lambda: names(fleet) == {one.id, two.id})
