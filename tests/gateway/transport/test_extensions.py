"""What a server offers beyond ASGI, by tiny applications on a real server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.asyncio.client import connect

from gateway import context
from gateway.config import ServerConfig
from gateway.processes.server import bind
from gateway.transport import extensions
from gateway.transport.cork import Cork
from gateway.transport.protocol import limited

pytestmark = pytest.mark.asyncio

START = {"type": "http.response.start", "status": 200, "headers": []}


@asynccontextmanager
async def serving(app: ASGIApp, limits: ServerConfig | None = None) -> AsyncIterator[int]:
    """The port where ``app`` is served by our protocols."""
    http, ws = limited(limits or ServerConfig(), Cork())
    config = uvicorn.Config(
        app, http=http, ws=ws, lifespan="off", log_config=None, ws_per_message_deflate=False
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    with contextlib.closing(bind(ServerConfig(port=0))) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running


async def answer(port: int, method: str = "GET", *, after: asyncio.Event | None = None) -> bytes:
    """All bytes of an answer, but for its head; read once ``after`` is set."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    async with asyncio.timeout(30):
        if after is not None:
            await after.wait()
        _head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return body


async def end(send: Send, body: bytes = b"") -> None:
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def test_chunks_written_are_the_chunks_that_are_sent() -> None:
    chunks = [b"data: one\n\n", b"x" * 300, "é".encode()]

    def app(*, writes: bool) -> ASGIApp:
        async def answering(scope: Scope, receive: Receive, send: Send) -> None:
            write = extensions.take_writer(scope)
            assert write is not None
            await send(START)
            for chunk in chunks:
                if writes:
                    assert write(chunk)
                else:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await end(send)

        return answering

    answers = []
    for writes in (True, False):
        async with serving(app(writes=writes)) as port:
            answers.append(await answer(port))
    assert answers[0] == answers[1]
    assert answers[0].startswith(b"b\r\ndata: one\n\n\r\n12c\r\nxxx")


async def test_what_is_no_chunk_is_left_to_send() -> None:
    refused: dict[str, list[bool]] = {"GET": [], "HEAD": []}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        write = extensions.take_writer(scope)
        assert write is not None
        found = refused[scope["method"]]
        found.append(write(b"before the head"))
        await send(START)
        found.append(write(b""))  # would be taken for the end
        found.append(scope["method"] == "HEAD" and write(b"a body"))
        await end(send, b"all")
        found.append(write(b"after the end"))

    async with serving(app) as port:
        assert await answer(port) == b"3\r\nall\r\n0\r\n\r\n"
        assert await answer(port, "HEAD") == b""
    assert refused == {"GET": [False] * 4, "HEAD": [False] * 4}


async def test_a_body_of_announced_length_is_left_to_send() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        write = extensions.take_writer(scope)
        assert write is not None
        await send(START | {"headers": [(b"content-length", b"3")]})
        assert not write(b"all")
        await end(send, b"all")

    async with serving(app) as port:
        assert await answer(port) == b"all"


async def test_a_reader_that_is_slow_must_be_waited_for() -> None:
    count, is_full = 0, asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        write = extensions.take_writer(scope)
        assert write is not None
        nonlocal count
        await send(START)
        while write(b"x" * 65536):
            count += 1
            await asyncio.sleep(0)
        is_full.set()
        await end(send, b"y")

    async with serving(app) as port:
        body = await answer(port, after=is_full)
    assert body.count(b"x") == count * 65536
    assert body.endswith(b"1\r\ny\r\n0\r\n\r\n")


async def test_a_writer_goes_on_after_a_pause_and_ends_with_the_answer() -> None:
    found: list[bool] = []
    is_full = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        write = extensions.take_writer(scope)
        assert write is not None
        await send(START)
        while write(b"x" * 65536):  # noqa: ASYNC110 - the condition is another object's state
            await asyncio.sleep(0)
        is_full.set()
        await send({"type": "http.response.body", "body": b"y", "more_body": True})  # waits
        found.append(write(b"z"))
        await end(send)
        found.append(write(b"after the end"))

    async with serving(app) as port:
        body = await answer(port, after=is_full)
    assert found == [True, False]
    assert body.endswith(b"1\r\ny\r\n1\r\nz\r\n0\r\n\r\n")


async def test_a_client_that_reads_on_in_time_is_not_dropped_later() -> None:
    is_full = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        write = extensions.take_writer(scope)
        assert write is not None
        await send(START)
        while write(b"x" * 65536):  # noqa: ASYNC110 - the condition is another object's state
            await asyncio.sleep(0)
        is_full.set()
        await send({"type": "http.response.body", "body": b"y", "more_body": True})  # waits
        await asyncio.sleep(0.4)
        await end(send, b"whole")

    async with serving(app, ServerConfig(send_timeout_s=0.3)) as port:
        assert b"whole" in await answer(port, after=is_full)


async def test_nor_is_one_of_a_websocket() -> None:
    is_full = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        write = extensions.take_writer(scope)
        assert write is not None
        await receive()
        await send({"type": "websocket.accept"})
        while write(b"x" * 65536):  # noqa: ASYNC110 - the condition is another object's state
            await asyncio.sleep(0)
        is_full.set()
        await send({"type": "websocket.send", "text": "y"})  # waits
        await asyncio.sleep(0.4)
        await send({"type": "websocket.send", "text": "whole"})
        await receive()

    async with (
        serving(app, ServerConfig(send_timeout_s=0.3)) as port,
        connect(f"ws://127.0.0.1:{port}/") as socket,
    ):
        await is_full.wait()
        async with asyncio.timeout(30):
            while await socket.recv() != "whole":
                pass


async def test_whoever_works_hears_that_the_client_has_left() -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        disconnect = extensions.disconnect_of(scope)
        assert disconnect is not None
        assert not disconnect.has_left
        disconnect.on_leave = left.set
        begun.set()
        await left.wait()
        assert disconnect.has_left
        await send(START)
        await end(send)

    async with serving(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(30):
            await begun.wait()
            writer.close()
            await left.wait()
    assert extensions.disconnect_of({"type": "http"}) is None


async def test_messages_of_a_websocket() -> None:
    found: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        write = extensions.take_writer(scope)
        assert write is not None
        found.append(write(b"before it is accepted"))
        await receive()
        await send({"type": "websocket.accept"})
        found.append(write("é".encode() * 100))
        await send({"type": "websocket.send", "text": "between"})
        found.append(write(b"last"))
        await receive()
        await send({"type": "websocket.close", "code": 1000})
        found.append(write(b"after the close"))

    async with serving(app) as port, connect(f"ws://127.0.0.1:{port}/") as socket:
        assert [await socket.recv() for _ in range(3)] == ["é" * 100, "between", "last"]
        await socket.send("bye")
        with contextlib.suppress(Exception):
            await socket.recv()
    assert found == [False, True, True, False]


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
async def test_messages_of_any_size(size: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        write = extensions.take_writer(scope)
        assert write is not None
        await receive()
        await send({"type": "websocket.accept"})
        assert write(b"x" * size)
        await receive()

    async with serving(app) as port, connect(f"ws://127.0.0.1:{port}/") as socket:
        assert await socket.recv() == "x" * size


async def test_no_message_follows_the_close_of_the_client() -> None:
    wrote: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        write = extensions.take_writer(scope)
        assert write is not None
        await receive()
        await send({"type": "websocket.accept"})
        wrote.append(write(b"open"))
        assert (await receive())["type"] == "websocket.disconnect"
        wrote.append(write(b"closed"))

    async with serving(app) as port, connect(f"ws://127.0.0.1:{port}/") as socket:
        assert await socket.recv() == "open"
    assert wrote == [True, False]


async def test_a_scope_and_its_context_do_not_keep_each_other() -> None:
    async def send(message: object) -> None: ...

    scope: Scope = {"type": "http", "extensions": {extensions.WRITER: lambda data: True}}
    attached = context.attach(scope, send)
    assert attached.write is not None
    assert extensions.take_writer(scope) is None
    assert context.of(scope) is attached
    context.detach(scope)
    assert attached not in scope.values()
    assert context.attach({"type": "http"}, send).write is None
