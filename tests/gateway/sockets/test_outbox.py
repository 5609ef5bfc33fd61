from __future__ import annotations

import asyncio

import pytest

from gateway.sockets.outbox import Outbox

pytestmark = pytest.mark.asyncio


class Reader:
    """Takes frames only while it is open."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.open = asyncio.Event()

    async def send(self, frame: bytes) -> None:
        await self.open.wait()
        self.frames.append(frame)


class OneByOne(Reader):
    """Takes a frame each time that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = asyncio.Semaphore(0)

    def take(self) -> None:
        self._turns.release()

    async def send(self, frame: bytes) -> None:
        await self._turns.acquire()
        self.frames.append(frame)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_frames_leave_in_order() -> None:
    reader = Reader()
    outbox = Outbox(reader.send, max_bytes=1000)
    reader.open.set()
    writer = asyncio.create_task(outbox.run())
    for i in range(10):
        await outbox.put(str(i % 3), b"%d" % i)
    await outbox.flush()
    assert reader.frames == [b"%d" % i for i in range(10)]
    writer.cancel()


async def test_a_full_turn_waits_and_the_others_go_on() -> None:
    reader = Reader()
    outbox = Outbox(reader.send, max_bytes=10)
    writer = asyncio.create_task(outbox.run())
    await outbox.put("a", b"x" * 10)
    waiting = asyncio.create_task(outbox.put("a", b"late"))
    await settle()
    assert not waiting.done()
    async with asyncio.timeout(30):
        await outbox.put("b", b"y")
        await outbox.put(None, b"z")
    reader.open.set()
    await waiting
    await outbox.flush()
    assert reader.frames == [b"x" * 10, b"y", b"z", b"late"]
    writer.cancel()


async def test_what_is_sent_makes_room_for_as_much() -> None:
    """And while a turn waits for room, for the second time, too, the event loop is free."""
    reader = OneByOne()
    outbox = Outbox(reader.send, max_bytes=10)
    writer = asyncio.create_task(outbox.run())
    for text in (b"a" * 6, b"b" * 6):
        await outbox.put("turn", text)
    for text in (b"c" * 6, b"d" * 6):
        waiting = asyncio.create_task(outbox.put("turn", text))
        await settle()
        assert not waiting.done()
        reader.take()
        await settle()
        assert waiting.done()
    for _ in range(2):
        flushing = asyncio.create_task(outbox.flush())
        await settle()
        assert not flushing.done()
        reader.take()
    async with asyncio.timeout(30):
        await outbox.flush()
    assert outbox.is_free
    assert reader.frames == [letter * 6 for letter in (b"a", b"b", b"c", b"d")]
    writer.cancel()


async def test_frames_of_a_callback_leave_at_once_until_one_must_wait() -> None:
    reader = Reader()
    reader.open.set()
    outbox = Outbox(reader.send, max_bytes=10)
    writer = asyncio.create_task(outbox.run())
    outbox.put_all_now("turn", [b"1", b"2"])
    assert reader.frames == [b"1", b"2"]
    reader.open.clear()
    outbox.put_all_now("turn", [b"3", b"4", b"5"])
    assert not outbox.is_free
    reader.open.set()
    outbox.put_all_now(None, [b"6"])  # not before those that wait
    await outbox.flush()
    assert reader.frames == [b"%d" % i for i in range(1, 7)]
    writer.cancel()


async def test_flushing_waits_for_a_frame_that_left_at_once() -> None:
    reader = Reader()
    outbox = Outbox(reader.send, max_bytes=10)
    assert outbox.offer(b"a", 0.0)
    flushing = asyncio.create_task(outbox.flush())
    await settle()
    assert not flushing.done()
    reader.open.set()
    await flushing
    assert reader.frames == [b"a"]


async def test_with_its_writer_ends_the_frame_that_is_on_its_way() -> None:
    reader = Reader()
    outbox = Outbox(reader.send, max_bytes=10)
    assert outbox.offer(b"a", 0.0)
    writer = asyncio.create_task(outbox.run())
    await settle()
    writer.cancel()
    await settle()
    reader.open.set()
    await settle()
    assert not reader.frames
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "outlet"]


async def test_the_bound_counts_bytes() -> None:
    outbox = Outbox(Reader().send, max_bytes=10)
    await outbox.put("a", "é".encode() * 5)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await outbox.put("a", b"x")


async def test_nothing_is_remembered_of_turns_that_ended() -> None:
    reader = Reader()
    outbox = Outbox(reader.send, max_bytes=10)
    reader.open.set()
    writer = asyncio.create_task(outbox.run())
    for i in range(100):
        await outbox.put(str(i), b"x")
    await outbox.flush()
    assert not outbox._unsent
    writer.cancel()


async def test_a_frame_leaves_at_once_where_nothing_waits() -> None:
    reader = Reader()
    reader.open.set()
    outbox = Outbox(reader.send, max_bytes=10)
    writer = asyncio.create_task(outbox.run())
    for i in range(5):
        assert outbox.is_free
        assert outbox.offer(b"%d" % i, 0.0)
        assert reader.frames[-1] == b"%d" % i
    await outbox.put("a", b"5")
    assert not outbox.is_free
    assert not outbox.offer(b"before its turn", 0.0)
    await outbox.flush()
    assert outbox.is_free
    assert reader.frames == [b"%d" % i for i in range(6)]
    writer.cancel()


async def test_a_frame_put_at_once_is_before_those_queued_behind_it() -> None:
    reader = Reader()
    outbox = Outbox(reader.send, max_bytes=10)
    writer = asyncio.create_task(outbox.run())
    assert outbox.offer(b"a", 0.0)
    assert not outbox.is_free
    assert not outbox.offer(b"too early", 0.0)
    await outbox.put("turn", b"b")
    await settle()
    assert not reader.frames
    reader.open.set()
    await outbox.flush()
    assert reader.frames == [b"a", b"b"]
    writer.cancel()


async def test_a_client_that_is_gone_ends_the_writer() -> None:
    async def send(frame: bytes) -> None:
        raise ConnectionResetError

    outbox = Outbox(send, max_bytes=10)
    writer = asyncio.create_task(outbox.run())
    assert outbox.offer(b"a", 0.0)
    assert not outbox.is_free
    await outbox.put(None, b"b")
    with pytest.raises(ConnectionResetError):
        await writer
