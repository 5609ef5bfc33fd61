"""Readers that end with their key, whatever they are doing at the moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from gateway.errors import Draining, InvalidApiKey
from gateway.streams.keyed_reader import KeyedReader, Readers
from gateway.streams.record import Take
from tests.memory_store.store import MemoryStore
from tests.tenants.samples import make_key

pytestmark = pytest.mark.asyncio


class Source:
    """A ``StreamReader`` of what is put into it; None is its end."""

    stream_id = "s"

    def __init__(self) -> None:
        self.items = asyncio.Queue[Sequence[bytes] | None]()
        self.calls: list[str] = []

    def __aiter__(self) -> AsyncIterator[Sequence[bytes]]:
        return self

    async def __anext__(self) -> Sequence[bytes]:
        items = await self.items.get()
        if items is None:
            raise StopAsyncIteration
        return items

    def divert(self, take: Take) -> None:
        self.calls.append("divert")

    async def beat(self) -> None:
        self.calls.append("beat")

    def stop(self) -> None:
        self.calls.append("stop")

    def close(self) -> None:
        self.calls.append("close")


async def make() -> tuple[KeyedReader, Source, Readers]:
    source, readers = Source(), Readers()
    _, principal = await make_key(MemoryStore(), "acme")
    return KeyedReader(source, principal, readers), source, readers


async def test_it_reads_what_the_other_reads() -> None:
    reader, source, readers = await make()
    for items in ([b"1"], [b"2", b"3"], None):
        source.items.put_nowait(items)
    assert [items async for items in reader] == [[b"1"], [b"2", b"3"]]
    assert readers == {reader}
    reader.divert(lambda item, now: True)
    await reader.beat()
    reader.stop()
    reader.close()
    reader.close()
    assert (reader.stream_id, readers) == ("s", Readers())
    assert source.calls == ["divert", "beat", "stop", "close", "close"]


async def test_who_waits_is_told_at_once_and_who_comes_back_too() -> None:
    reader, source, _ = await make()
    loop = asyncio.get_running_loop()
    loop.call_later(0.02, reader.refuse, InvalidApiKey("revoked"))
    loop.call_later(0.03, source.items.put_nowait, [b"too late"])
    for _ in range(2):
        async with asyncio.timeout(5):
            with pytest.raises(InvalidApiKey, match="revoked"):
                await anext(reader)


async def test_a_second_refusal_finds_it_ending() -> None:
    reader, source, _ = await make()
    is_ending, may_end = asyncio.Event(), asyncio.Event()

    async def ends_slowly() -> Sequence[bytes]:
        try:
            return await asyncio.Future[Sequence[bytes]]()
        finally:
            is_ending.set()
            await may_end.wait()

    source.items.get = ends_slowly  # type: ignore[method-assign]
    reading = asyncio.ensure_future(anext(reader))
    async with asyncio.timeout(5):
        await asyncio.sleep(0)
        reader.refuse(InvalidApiKey("revoked"))
        await is_ending.wait()
        reader.refuse(InvalidApiKey("suspended"))
        may_end.set()
        with pytest.raises(InvalidApiKey, match="revoked"):
            await reading


async def test_a_shutdown_ends_who_reads_and_who_comes_later() -> None:
    reader, source, readers = await make()
    reading = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    readers.refuse_all(Draining("The server is shutting down."))
    late = KeyedReader(source, reader.principal, readers)
    for ended in (reading, anext(late)):
        with pytest.raises(Draining):
            await ended
    reader.close()
    late.close()
    async with asyncio.timeout(5):
        await readers.wait_empty()


async def test_a_time_limit_of_the_reader_is_its_own() -> None:
    reader, _, _ = await make()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await anext(reader)
    source = Source()
    source.items.get = _times_out  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        await anext(KeyedReader(source, reader.principal, Readers()))


async def _times_out() -> Sequence[bytes]:
    raise TimeoutError
