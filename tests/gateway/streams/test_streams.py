"""The life of a resumable stream where no server is needed; over connections: ``routes``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from uuid import uuid4

import pytest

from gateway.errors import ApiError, StreamNotFound
from gateway.generation.delta import Delta
from gateway.peers.peers import Peers
from gateway.streams.archive import StreamArchive
from gateway.streams.log import MemoryStreamLog, StreamReader
from gateway.streams.streams import LocalReader, Streams
from tenants.memory import MemoryStore
from tests.gateway.loop_clock import LoopClock
from tests.gateway.peering import make_peers
from tests.gateway.serving import until

pytestmark = pytest.mark.asyncio

TENANT = uuid4()


class ScriptedGeneration:
    """A ``Work``."""

    def __init__(self) -> None:
        self.closed = 0
        self.cancelled = 0

    def close(self) -> None:
        self.closed += 1

    def cancel(self) -> None:
        self.cancelled += 1


class FailingLog(MemoryStreamLog):
    """Loses the second item."""

    def append(self, stream_id: str, items: Sequence[bytes]) -> None:
        if b"2" in items:
            raise ConnectionError("the log is away")
        super().append(stream_id, items)


def make_log(kind: type[MemoryStreamLog] = MemoryStreamLog) -> MemoryStreamLog:
    return kind(max_stream_bytes=10**6, max_tenant_bytes=10**7, retention_s=60)


def make_streams(
    log: MemoryStreamLog,
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


async def body(
    *items: bytes, until: asyncio.Event | None = None
) -> AsyncGenerator[list[bytes], None]:
    """Ends when ``until`` is set, at once without it."""
    for item in items:
        yield [item]
    if until is not None:
        await until.wait()


def endless(*items: bytes) -> AsyncGenerator[list[bytes], None]:
    return body(*items, until=asyncio.Event())


def cut(error: ApiError) -> bytes:
    return b"cut: " + (error.code or "").encode()


async def open_stream(
    streams: Streams, generation: ScriptedGeneration, items: AsyncGenerator[list[bytes], None]
) -> LocalReader:
    return await streams.open(
        streams.new_id(),
        generation,
        items,
        kind="sse",
        cut=cut,
        tenant_id=TENANT,
        heartbeat=lambda: b"beat",
    )


async def read(reader: StreamReader) -> list[bytes]:
    return [item async for items in reader for item in items]


async def test_a_log_that_fails_is_no_clean_end() -> None:
    streams, generation = (
        make_streams(make_log(FailingLog), grace_s=9, heartbeat_s=9),
        (ScriptedGeneration()),
    )
    reader = await open_stream(streams, generation, body(b"1", b"2", b"3"))
    assert await read(reader) == [b"1", b"cut: internal_error"]
    assert generation.closed


async def test_what_a_sink_is_given_is_read_at_its_place() -> None:
    streams = make_streams(make_log(), grace_s=9, heartbeat_s=9)
    stream_id, more = streams.new_id(), asyncio.Event()
    sink = streams.sink(stream_id, lambda delta: [delta.content.encode()] * 2)
    sink.put(Delta(0, "too early"))

    async def said() -> AsyncGenerator[list[bytes], None]:
        yield [b"1"]
        await more.wait()
        yield [b"4"]

    reader = await streams.open(
        stream_id, ScriptedGeneration(), said(), tenant_id=TENANT, kind="sse", cut=cut
    )
    assert list(await anext(reader)) == [b"1"]
    assert sink.is_free
    sink.put(Delta(0, "2"))
    assert list(await anext(reader)) == [b"2", b"2"]
    sink.put(Delta(0, "3"))
    more.set()
    assert await read(reader) == [b"3", b"3", b"4"]
    sink.put(Delta(0, "too late"))
    again = await streams.follow(stream_id, TENANT, kind="sse", after=0)
    assert await read(again) == [b"1", b"2", b"2", b"3", b"3", b"4"]


async def test_a_reader_gets_the_end_however_full_the_log_is() -> None:
    log = MemoryStreamLog(max_stream_bytes=10**6, max_tenant_bytes=4096, retention_s=60)
    streams = make_streams(log, grace_s=9, heartbeat_s=9)
    slow = await open_stream(streams, ScriptedGeneration(), body(b"a" * 900, b"b"))
    going_on = await open_stream(streams, ScriptedGeneration(), endless())
    await asyncio.sleep(0.01)
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
    generations = [ScriptedGeneration(), ScriptedGeneration()]
    reader = await open_stream(streams, generations[0], endless(b"1"))
    assert list(await anext(reader)) == [b"1"]
    reader.close()
    reader.close()
    await open_stream(streams, generations[1], endless(b"1"))
    await streams.close()
    assert all(generation.closed for generation in generations)


async def test_only_the_last_reader_to_leave_starts_the_grace_time() -> None:
    streams, generation = (
        make_streams(make_log(), grace_s=0.4, heartbeat_s=9),
        ScriptedGeneration(),
    )
    first = await open_stream(streams, generation, endless(b"1"))
    second = await streams.follow(first.stream_id, TENANT, kind="sse", after=0)
    first.close()
    await asyncio.sleep(0.5)
    assert not generation.closed
    second.close()
    assert not generation.closed
    third = await streams.follow(first.stream_id, TENANT, kind="sse", after=1)
    await asyncio.sleep(0.5)
    assert not generation.closed
    third.close()
    await until(lambda: generation.closed)
    await streams.close()


@pytest.mark.parametrize("end", ["it ended", "all were closed"])
async def test_the_grace_time_of_what_has_ended_is_called_off(end: str) -> None:
    generation, over = ScriptedGeneration(), asyncio.Event()
    streams = make_streams(make_log(), grace_s=0.2, heartbeat_s=9)
    reader = await open_stream(streams, generation, body(b"1", until=over))
    running = streams._running[reader.stream_id]
    reader.close()
    assert running.grace is not None
    if end == "it ended":
        over.set()
        await until(lambda: generation.closed)
        await until(lambda: running.grace is None)
    else:
        await streams.close()
        assert running.grace is None
    await asyncio.sleep(0.25)
    assert generation.closed == 1
    await streams.close()


async def test_two_readers_of_one_silence_hear_one_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    generation, over = ScriptedGeneration(), asyncio.Event()
    clock = LoopClock(monkeypatch)
    streams = make_streams(make_log(), grace_s=9, heartbeat_s=9)
    first = await open_stream(streams, generation, body(b"1", until=over))
    second = await streams.follow(first.stream_id, TENANT, kind="sse", after=0)
    await clock.go_on(0)  # the item comes, and then silence
    await clock.go_on(9)
    await first.beat()
    await second.beat()
    over.set()
    assert await read(first) == await read(second) == [b"1", b"beat"]
    await first.beat()  # after the end: nothing more is said
    assert await read(second) == []


async def test_stopping_is_idempotent_and_needs_no_running_stream() -> None:
    generation, over = ScriptedGeneration(), asyncio.Event()
    streams = make_streams(make_log(), grace_s=9, heartbeat_s=9)
    reader = await open_stream(streams, generation, body(b"1", until=over))
    await streams.stop(reader.stream_id, TENANT)
    reader.stop()
    assert generation.cancelled == 2
    over.set()
    await read(reader)
    await streams.stop(reader.stream_id, TENANT)
    assert generation.cancelled == 2
    assert generation.closed == 1


async def test_ids_cannot_be_guessed() -> None:
    streams = make_streams(make_log(), grace_s=9, heartbeat_s=9)
    ids = {streams.new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(len(stream_id) == len("stream_") + 12 + 40 for stream_id in ids)


async def test_a_detached_stream_needs_no_reader() -> None:
    streams, generation = (
        make_streams(make_log(), grace_s=0.02, heartbeat_s=9),
        ScriptedGeneration(),
    )
    over = asyncio.Event()
    reader = await streams.open(
        "s",
        generation,
        body(b"1", b"2", until=over),
        tenant_id=TENANT,
        kind="sse",
        cut=cut,
        is_detached=True,
    )
    reader.close()
    await asyncio.sleep(0.1)
    assert generation.closed == 0
    over.set()
    assert await read(await streams.follow("s", TENANT, kind="sse", after=0)) == [b"1", b"2"]
    assert generation.closed == 1
