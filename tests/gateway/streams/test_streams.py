"""The life of a resumable stream where no server is needed; over connections: ``routes``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from uuid import uuid4

import pytest

from gateway.errors import ApiError, RateLimited, StreamNotFound
from gateway.generation.events import Channel, Event
from gateway.peers.peers import Peers
from gateway.streams.archive import StreamArchive
from gateway.streams.log import StreamLog, StreamReader
from gateway.streams.streams import MAX_READERS, LocalReader, Streams, Work
from tests.gateway.loop_clock import LoopClock
from tests.gateway.peering import make_peers
from tests.gateway.serving import until
from tests.memory_store.store import MemoryStore

pytestmark = pytest.mark.asyncio

TENANT = uuid4()


class ScriptedWork:
    """Says ``items``, and ends when ``until`` is set, at once without it."""

    def __init__(self, *items: bytes, until: asyncio.Event | None = None) -> None:
        self.closed = 0
        self.cancelled = 0
        self._items = items
        self._until = until

    async def events(self, channel: Channel) -> AsyncGenerator[list[Event], None]:
        for item in self._items:
            yield [Event("", item)]
        if self._until is not None:
            await self._until.wait()

    def heartbeat(self) -> Event:
        return Event("", b"beat")

    def cut(self, error: ApiError) -> Event:
        return Event("", b"cut: " + (error.code or "").encode())

    def close(self) -> None:
        self.closed += 1

    def cancel(self) -> None:
        self.cancelled += 1


def endless(*items: bytes) -> ScriptedWork:
    return ScriptedWork(*items, until=asyncio.Event())


class FailingLog(StreamLog):
    """Loses the second item."""

    def append(self, stream_id: str, items: Sequence[bytes]) -> None:
        if b"2" in items:
            raise ConnectionError("the log is away")
        super().append(stream_id, items)


def make_log(kind: type[StreamLog] = StreamLog) -> StreamLog:
    return kind(max_stream_bytes=10**6, max_tenant_bytes=10**7, retention_s=60)


def make_streams(
    log: StreamLog,
    *,
    grace_s: float,
    heartbeat_s: float,
    archive: StreamArchive | None = None,
    peers: Peers | None = None,
) -> Streams:
    return Streams(
        log,
        archive or StreamArchive(MemoryStore().shared, max_tenant_bytes=10**7),
        peers or make_peers(),
        grace_s=grace_s,
        heartbeat_s=heartbeat_s,
        retention_s=60,
    )


async def open_stream(streams: Streams, work: Work) -> LocalReader:
    return await streams.open(streams.new_id(), work, kind="ws", tenant_id=TENANT)


async def read(reader: StreamReader) -> list[bytes]:
    return [item async for items in reader for item in items]


async def test_a_log_that_fails_is_no_clean_end() -> None:
    streams = make_streams(make_log(FailingLog), grace_s=9, heartbeat_s=9)
    work = ScriptedWork(b"1", b"2", b"3")
    assert await read(await open_stream(streams, work)) == [b"1", b"cut: internal_error"]
    assert work.closed


async def test_what_a_channel_is_given_is_read_at_its_place() -> None:
    streams = make_streams(make_log(), grace_s=9, heartbeat_s=9)
    channels, more = list[Channel](), asyncio.Event()

    class Told(ScriptedWork):
        async def events(self, channel: Channel) -> AsyncGenerator[list[Event], None]:
            channels.append(channel)
            yield [Event("", b"1")]
            await more.wait()
            yield [Event("", b"4")]

    reader = await open_stream(streams, Told())
    assert list(await anext(reader)) == [b"1"]
    (channel,) = channels
    assert channel.is_free
    channel.put([Event("", b"2")] * 2)
    assert list(await anext(reader)) == [b"2", b"2"]
    channel.put([Event("", b"3")])
    more.set()
    assert await read(reader) == [b"3", b"4"]
    channel.put([Event("", b"too late")])
    again = await streams.follow(reader.stream_id, TENANT, kind="ws", after=0)
    assert await read(again) == [b"1", b"2", b"2", b"3", b"4"]


async def test_a_reader_gets_the_end_however_full_the_log_is() -> None:
    log = StreamLog(max_stream_bytes=10**6, max_tenant_bytes=4096, retention_s=60)
    streams = make_streams(log, grace_s=9, heartbeat_s=9)
    slow = await open_stream(streams, work := ScriptedWork(b"a" * 900, b"b"))
    going_on = await open_stream(streams, endless())
    await until(lambda: work.closed)
    log.append(going_on.stream_id, [b"c" * 1000] * 3)
    assert await read(slow) == [b"a" * 900, b"b"]
    slow.close()
    log.append(going_on.stream_id, [b"d"])
    with pytest.raises(StreamNotFound):
        await log.check(slow.stream_id, TENANT)
    going_on.close()
    await streams.close()


async def test_closing_settles_what_runs_and_what_has_yet_to_begin() -> None:
    streams = make_streams(make_log(), grace_s=9, heartbeat_s=9)
    works = [endless(b"1"), endless(b"1")]
    reader = await open_stream(streams, works[0])
    assert list(await anext(reader)) == [b"1"]
    reader.close()
    reader.close()
    await open_stream(streams, works[1])
    await streams.close()
    assert all(work.closed for work in works)


async def test_only_the_last_reader_to_leave_starts_the_grace_time() -> None:
    streams, work = make_streams(make_log(), grace_s=0.4, heartbeat_s=9), endless(b"1")
    first = await open_stream(streams, work)
    second = await streams.follow(first.stream_id, TENANT, kind="ws", after=0)
    first.close()
    await asyncio.sleep(0.5)
    assert not work.closed
    second.close()
    assert not work.closed
    third = await streams.follow(first.stream_id, TENANT, kind="ws", after=1)
    await asyncio.sleep(0.5)
    assert not work.closed
    third.close()
    await until(lambda: work.closed)
    await streams.close()


async def test_a_running_stream_has_few_readers_and_an_ended_one_any_number() -> None:
    end = asyncio.Event()
    streams = make_streams(make_log(), grace_s=9, heartbeat_s=9)
    first = await open_stream(streams, ScriptedWork(b"1", until=end))

    async def follow() -> LocalReader:
        reader = await streams.follow(first.stream_id, TENANT, kind="ws", after=0)
        assert isinstance(reader, LocalReader)
        return reader

    readers = [first, *[await follow() for _ in range(MAX_READERS - 1)]]
    with pytest.raises(RateLimited, match="close one"):
        await follow()
    readers.pop().close()
    readers.append(await follow())
    end.set()
    assert await asyncio.gather(*map(read, readers)) == [[b"1"]] * MAX_READERS
    assert [await read(await follow()) for _ in range(3)] == [[b"1"]] * 3
    await streams.close()


@pytest.mark.parametrize("end", ["it ended", "all were closed"])
async def test_the_grace_time_of_what_has_ended_is_called_off(end: str) -> None:
    over = asyncio.Event()
    work = ScriptedWork(b"1", until=over)
    streams = make_streams(make_log(), grace_s=0.2, heartbeat_s=9)
    reader = await open_stream(streams, work)
    running = streams._running[reader.stream_id]
    reader.close()
    assert running.grace is not None
    if end == "it ended":
        over.set()
        await until(lambda: work.closed)
        await until(lambda: running.grace is None)
    else:
        await streams.close()
        assert running.grace is None
    await asyncio.sleep(0.25)
    assert work.closed == 1
    await streams.close()


async def test_two_readers_of_one_silence_hear_one_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    over = asyncio.Event()
    work = ScriptedWork(b"1", until=over)
    clock = LoopClock(monkeypatch)
    streams = make_streams(make_log(), grace_s=9, heartbeat_s=9)
    first = await open_stream(streams, work)
    second = await streams.follow(first.stream_id, TENANT, kind="ws", after=0)
    await clock.go_on(0)  # the item comes, and then silence
    await clock.go_on(9)
    await first.beat()
    await second.beat()
    over.set()
    assert await read(first) == await read(second) == [b"1", b"beat"]
    await first.beat()  # after the end: nothing more is said
    assert await read(second) == []


async def test_stopping_is_idempotent_and_needs_no_running_stream() -> None:
    over = asyncio.Event()
    work = ScriptedWork(b"1", until=over)
    streams = make_streams(make_log(), grace_s=9, heartbeat_s=9)
    reader = await open_stream(streams, work)
    await streams.stop(reader.stream_id, TENANT)
    reader.stop()
    assert work.cancelled == 2
    over.set()
    await read(reader)
    await streams.stop(reader.stream_id, TENANT)
    assert work.cancelled == 2
    assert work.closed == 1


async def test_ids_cannot_be_guessed() -> None:
    streams = make_streams(make_log(), grace_s=9, heartbeat_s=9)
    ids = {streams.new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(stream_id) == len("stream_") + 12 + 40 for stream_id in ids)


async def test_a_detached_stream_needs_no_reader() -> None:
    over = asyncio.Event()
    streams = make_streams(make_log(), grace_s=0.02, heartbeat_s=9)
    work = ScriptedWork(b"1", b"2", until=over)
    reader = await streams.open("s", work, tenant_id=TENANT, kind="ws", is_detached=True)
    reader.close()
    await asyncio.sleep(0.1)
    assert work.closed == 0
    over.set()
    assert await read(await streams.follow("s", TENANT, kind="ws", after=0)) == [b"1", b"2"]
    assert work.closed == 1
