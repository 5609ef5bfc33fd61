from __future__ import annotations

import asyncio

import pytest

from gateway.transport.outlet import Outlet

pytestmark = pytest.mark.asyncio


class Reader:
    """Takes messages while it is open."""

    def __init__(self, *, is_open: bool) -> None:
        self.taken: list[bytes] = []
        self.tasks: list[asyncio.Task[object] | None] = []
        self.open = asyncio.Event()
        self.cancelled = False
        if is_open:
            self.open.set()

    async def send(self, message: bytes) -> None:
        self.tasks.append(asyncio.current_task())
        try:
            await self.open.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        self.taken.append(message)


class QuickReader:
    """Never waits."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    async def send(self, message: bytes) -> None:
        self.taken.append(message)


async def test_what_need_not_wait_is_sent_before_put_returns() -> None:
    reader = QuickReader()
    outlet = Outlet(reader.send)
    for message in (b"a", b"b", b"c"):
        assert outlet.is_free
        outlet.put(message)
        assert reader.taken[-1] == message
    await outlet.send(b"d")
    assert reader.taken == [b"a", b"b", b"c", b"d"]
    assert len(asyncio.all_tasks()) == 1


async def test_what_must_wait_goes_on_in_a_task() -> None:
    reader = Reader(is_open=False)
    outlet = Outlet(reader.send)
    outlet.put(b"a")
    assert not outlet.is_free
    await asyncio.sleep(0.01)
    assert not reader.taken
    reader.open.set()
    await outlet.wait()
    assert outlet.is_free
    assert reader.taken == [b"a"]


async def test_messages_leave_in_order() -> None:
    reader = Reader(is_open=False)
    outlet = Outlet(reader.send)
    outlet.put(b"a")
    sending = asyncio.create_task(outlet.send(b"b"))
    await asyncio.sleep(0)
    assert not outlet.is_free
    reader.open.set()
    await sending
    assert reader.taken == [b"a", b"b"]


async def test_closed_it_gives_up_what_waits() -> None:
    reader = Reader(is_open=False)
    outlet = Outlet(reader.send)
    outlet.put(b"a")
    await asyncio.sleep(0)
    outlet.close()
    with pytest.raises(asyncio.CancelledError):
        await outlet.wait()
    assert reader.cancelled
    assert not outlet.is_free
    outlet.close()


async def test_a_sender_that_is_cancelled_leaves_its_message_on_the_way() -> None:
    reader = Reader(is_open=False)
    outlet = Outlet(reader.send)
    sending = asyncio.create_task(outlet.send(b"a"))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert not reader.cancelled
    reader.open.set()
    await outlet.wait()
    assert reader.taken == [b"a"]


class Transport:
    """Takes messages without a coroutine as long as its buffer is not full."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.is_full = False

    def write(self, message: bytes) -> bool:
        if not self.is_full:
            self.taken.append(message)
        return not self.is_full


@pytest.mark.parametrize("way", ["offer", "put"])
async def test_a_transport_that_takes_a_message_is_the_only_one_to_get_it(way: str) -> None:
    reader, transport = QuickReader(), Transport()
    outlet = Outlet(reader.send, transport.write)

    def give(message: bytes) -> None:
        if way == "put":
            outlet.put(message)
        else:
            assert outlet.offer(message, 0.0)

    for message in (b"a", b"b"):
        give(message)
        assert outlet.is_free
    transport.is_full = True
    give(b"c")
    transport.is_full = False
    give(b"d")
    assert (transport.taken, reader.taken) == ([b"a", b"b", b"d"], [b"c"])


async def test_an_offer_is_taken_once_what_came_before_has_left() -> None:
    reader = Reader(is_open=False)
    outlet = Outlet(reader.send)
    assert outlet.put_at == 0.0
    assert outlet.offer(b"a", 5.0)
    assert not outlet.offer(b"b", 6.0)
    assert outlet.put_at == 5.0  # the other was not sent
    reader.open.set()
    await outlet.wait()
    assert outlet.offer(b"c", 7.0)
    await outlet.wait()
    assert (reader.taken, outlet.put_at) == ([b"a", b"c"], 7.0)


@pytest.mark.parametrize("way", ["offer", "put"])
async def test_a_transport_that_fails_ends_the_outlet(way: str) -> None:
    def write(message: bytes) -> bool:
        raise ConnectionResetError(message.decode())

    outlet = Outlet(QuickReader().send, write)
    if way == "offer":
        assert outlet.offer(b"a", 0.0)  # taken, and lost
        assert not outlet.offer(b"b", 0.0)
    else:
        outlet.put(b"a")
    assert not outlet.is_free
    with pytest.raises(ConnectionResetError, match="a"):
        await outlet.wait()


@pytest.mark.parametrize("late", [False, True])
async def test_what_sending_raises_is_raised_where_it_can_be_handled(late: bool) -> None:
    async def send(message: bytes) -> None:
        if late:
            await asyncio.sleep(0.001)
        raise ConnectionResetError(message.decode())

    outlet = Outlet(send)
    outlet.put(b"a")
    assert not outlet.is_free
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            await outlet.wait()
    with pytest.raises(ConnectionResetError):
        await outlet.send(b"b")


async def test_sending_that_goes_on_when_cancelled() -> None:
    """As a server may that has to tidy up: all that it waits for is waited for."""
    steps: list[str] = []

    async def send(message: bytes) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.001)
            steps.append("tidied")
            raise

    outlet = Outlet(send)
    outlet.put(b"a")
    await asyncio.sleep(0)
    outlet.close()
    with pytest.raises(asyncio.CancelledError):
        await outlet.wait()
    assert steps == ["tidied"]
