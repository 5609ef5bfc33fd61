"""Whatever comes over the wire, before or after the handshake, is a message or a ``WireError``."""

from __future__ import annotations

import asyncio
import inspect
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import msgspec
import pytest
import uvloop
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway import errors
from gateway.errors import ApiError, InternalError, NotFound
from gateway.peers import wire as peer_wire
from gateway.peers.wire import (
    Challenge,
    Failed,
    Follow,
    Hello,
    Items,
    Value,
    Welcome,
    Wire,
    WireError,
    derive_secret,
    greet,
    introduce,
)

SECRET = derive_secret(b"a root")
ENCODE = msgspec.msgpack.encode
MESSAGES = [
    Value(b"x" * 100_000),
    Items([b"", b"a", b"b" * 70_000]),
    Follow(stream_id="s", tenant_id=uuid4(), kind="sse", after=3),
]
ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, ApiError) and kind is not ApiError
]


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Wire, Wire, asyncio.StreamWriter]]:
    """Both ends of a connection, and the second one's bytes."""
    first, second = [await asyncio.open_connection(sock=side) for side in socket.socketpair()]
    try:
        yield Wire(*first), Wire(*second), second[1]
    finally:
        first[1].close()
        second[1].close()


def received(data: bytes, *, max_bytes: int = 4096) -> object:
    """What the end that reads makes of these bytes and nothing after them."""

    async def read() -> object:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        unused: asyncio.StreamWriter = None  # type: ignore[assignment]
        return await Wire(reader, unused).receive_any(max_bytes=max_bytes)

    return asyncio.run(read())


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


@pytest.mark.asyncio
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
async def test_messages_arrive_as_they_were_sent(message: msgspec.Struct) -> None:
    async with linked() as (first, second, _):
        sending = asyncio.create_task(first.send(message))  # type: ignore[arg-type]
        assert await second.receive(type(message)) == message
        await sending


class TestBytes:
    @given(st.binary(max_size=300))
    @example(ENCODE({"type": "Hello"})[:-5] + b"\xff\xfe\xfd\xfc\xfb")  # a name that is no UTF-8
    @example(b"\x82\xa4type\xa5Value\xa1x" + b"\x91" * 3000 + b"\xc0")  # nested too deeply
    def test_noise_is_refused(self, noise: bytes) -> None:
        with pytest.raises(WireError):
            received(frame(noise))

    @settings(max_examples=50)
    @given(st.data())
    def test_a_frame_that_is_cut_is_refused(self, data: st.DataObject) -> None:
        whole = frame(ENCODE(Items([b"one", b"two"])))
        kept = data.draw(st.integers(0, len(whole) - 1))
        with pytest.raises(WireError):
            received(whole[:kept])
        assert received(whole) == Items([b"one", b"two"])

    def test_a_frame_above_the_bound_is_refused_unread(self) -> None:
        with pytest.raises(WireError, match="a frame of 4097 bytes"):
            received((4097).to_bytes(4, "big"))


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
async def test_each_error_is_the_same_on_the_other_side(kind: type[ApiError]) -> None:
    before = Failed(
        kind=kind.__name__, message="no", param="p", code="c", retry_after_s=3, headers={"a": "b"}
    )
    error = msgspec.msgpack.decode(ENCODE(before), type=Failed).error()
    assert type(error) is kind
    assert Failed.of(error) == before
    async with linked() as (first, second, _):
        await first.send(before)
        with pytest.raises(kind, match="no"):
            await second.receive(Value)


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["OfANewerVersion", "SetupError", "errors", "__doc__"])
async def test_an_unknown_error_is_an_internal_one(name: str) -> None:
    assert type(Failed(kind=name, message="no").error()) is InternalError


@pytest.mark.asyncio
async def test_another_message_than_expected_is_refused() -> None:
    async with linked() as (first, second, _):
        await first.send(Value(b"x"))
        with pytest.raises(WireError, match="expected Items, got Value"):
            await second.receive(Items)
        await first.send(Failed.of(NotFound("gone")))
        assert isinstance(await second.receive(Failed), Failed)  # who asks for it gets it


@pytest.mark.asyncio
class TestHandshake:
    async def test_both_know_the_secret(self) -> None:
        async with linked() as (first, second, _):
            await asyncio.gather(greet(first, SECRET), introduce(second, SECRET))

    async def test_a_caller_without_it_is_told_nothing(self) -> None:
        async with linked() as (first, second, _):
            calling = asyncio.create_task(introduce(second, derive_secret(b"another")))
            with pytest.raises(WireError, match="does not know the secret"):
                await greet(first, SECRET)
            first.close()
            with pytest.raises(WireError):
                await calling

    async def test_a_listener_without_it_is_left(self) -> None:
        async with linked() as (first, second, _):
            calling = asyncio.create_task(introduce(second, SECRET))
            await first.send(Challenge(b"n" * 32))
            hello = await first.receive(Hello)
            await first.send(Welcome(hello.proof))  # all that it has seen
            with pytest.raises(WireError, match="does not know the secret"):
                await calling

    async def test_a_caller_cannot_answer_with_what_another_listener_proved(self) -> None:
        """The proofs of the two sides differ, so neither can be had from the other."""
        async with linked() as (first, second, _):
            listening = asyncio.create_task(greet(first, SECRET))
            nonce = (await second.receive(Challenge)).nonce
            await second.send(Hello(nonce, peer_wire._proof(SECRET, b"answers", nonce, nonce)))
            with pytest.raises(WireError, match="does not know the secret"):
                await listening

    @pytest.mark.parametrize(
        "noise",
        [frame(b"\x82\xa4type\xa2\xff\xfe"), frame(b""), frame(b"x" * 300), b"GET / HTTP/1.1\r\n"],
        ids=["no UTF-8", "empty", "too long", "a browser"],
    )  # fmt: skip
    async def test_a_stranger_is_refused(self, noise: bytes) -> None:
        async with linked() as (first, _, writer):
            writer.write(noise)
            with pytest.raises(WireError):
                await greet(first, SECRET)

    async def test_who_says_nothing_is_not_waited_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(peer_wire, "HANDSHAKE_S", 0.02)
        async with linked() as (first, _, _), asyncio.timeout(5):
            with pytest.raises(TimeoutError):
                await greet(first, SECRET)


async def noticing(family: socket.AddressFamily) -> list[tuple[int, ...]]:
    """What the system watches of a connection: at the end that asked for it, and at the other."""
    if family == socket.AF_UNIX:
        sides = [await asyncio.open_connection(sock=side) for side in socket.socketpair()]
    else:
        accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        server = await asyncio.start_server(
            lambda reader, writer: accepted.put_nowait((reader, writer)), "127.0.0.1", 0
        )
        sides = [await asyncio.open_connection(*server.sockets[0].getsockname())]
        sides.append(await accepted.get())
        server.close()
    await asyncio.gather(introduce(Wire(*sides[0]), SECRET), greet(Wire(*sides[1]), SECRET))
    found = []
    for _, writer in sides:
        connection = writer.get_extra_info("socket")
        watched = [connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)]
        if family != socket.AF_UNIX:
            names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            watched += [
                connection.getsockopt(socket.IPPROTO_TCP, name)
                for name in (*names, socket.TCP_USER_TIMEOUT)
            ]
        found.append(tuple(watched))
        writer.close()
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the options have other names elsewhere")
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_host_that_vanishes_is_noticed(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Within 25 seconds, whether something was sent to it or not."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(noticing(socket.AF_INET)) == [(1, 10, 5, 3, 25_000)] * 2
        assert runner.run(noticing(socket.AF_UNIX)) == [(0,)] * 2


@pytest.mark.asyncio
async def test_a_connection_that_has_ended_is_a_wire_error() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.close()
    await writer.wait_closed()
    with pytest.raises(WireError):
        await introduce(Wire(reader, writer), SECRET)
    server.close()
