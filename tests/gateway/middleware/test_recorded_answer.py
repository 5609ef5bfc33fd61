from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import cast

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import context
from gateway.errors import InternalError, RateLimited, Unavailable
from gateway.middleware.recorded_answer import AnswerWork, give
from gateway.streams.archive import ArchivedReader
from gateway.streams.log import StreamLog, StreamReader
from gateway.streams.streams import LogChannel
from tests.gateway.raw_http import events

pytestmark = pytest.mark.asyncio


def new_scope() -> Scope:
    scope: Scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    context.attach(scope, send_nowhere)
    return scope


async def send_nowhere(message: Message) -> None:
    raise AssertionError("a recorded answer goes to its record alone")


def app_of(answer: Callable[[Request], Response]) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(Request(scope, receive))(scope, receive, send)

    return app


async def play(app: ASGIApp, *, body: bytes = b"") -> tuple[list[bytes], list[bool]]:
    """What is recorded, and what ``on_end`` was told."""
    told = list[bool]()

    async def on_end(is_good: bool, is_whole: bool) -> None:
        told.append(is_good)

    work = AnswerWork(app, new_scope(), body, on_end)
    work.start()
    return await items_of(work), told


async def items_of(work: AnswerWork) -> list[bytes]:
    channel = LogChannel(
        StreamLog(max_stream_bytes=0, max_tenant_bytes=0, retention_s=0), "", "answer"
    )
    return [event.data async for some in work.events(channel) for event in some]


async def given(items: Sequence[bytes], *, is_replay: bool = False) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await give(ArchivedReader("s", items, 0), send, is_replay=is_replay)
    return sent


async def test_an_answer_is_given_as_it_was() -> None:
    items, told = await play(app_of(lambda _: JSONResponse({"a": 1}, 200, {"x-y": "z"})))
    assert told == [True]
    start, *bodies = await given(items, is_replay=True)
    assert start["status"] == 200
    assert (b"x-y", b"z") in start["headers"]
    assert (b"idempotent-replayed", b"true") in start["headers"]
    assert b"".join(message["body"] for message in bodies) == b'{"a":1}'
    assert [message["more_body"] for message in bodies] == [True, False]
    (start, *_) = await given(items)
    assert (b"idempotent-replayed", b"true") not in start["headers"]


async def test_the_route_reads_the_body() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(await Request(scope, receive).body())(scope, receive, send)

    items, _ = await play(app, body=b"said")
    assert (await given(items))[1]["body"] == b"said"


@pytest.mark.parametrize(
    ("last", "is_good"),
    [
        (b"data: [DONE]\n\n", True),
        (b"event: response.incomplete\ndata: {}\n\ndata: [DONE]\n\n", True),
        (b"event: message_stop\ndata: {}\n\n", True),
        (b"event: response.failed\ndata: {}\n\ndata: [DONE]\n\n", False),
        (b'data: {"error":{}}\n\n', False),
    ],
)
async def test_which_streams_are_worth_keeping(last: bytes, is_good: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"data: {}\n\n"
        yield last

    answer = app_of(lambda _: StreamingResponse(chunks(), media_type="text/event-stream"))
    items, told = await play(answer)
    assert told == [is_good]
    assert b"".join(m["body"] for m in (await given(items))[1:]) == b"data: {}\n\n" + last


async def test_failures_are_told_and_not_kept() -> None:
    def refuse(_: Request) -> Response:
        raise RateLimited("slow down", retry_after_s=3)

    items, told = await play(app_of(refuse))
    assert told == [False]
    start, body, _ = await given(items)
    assert start["status"] == 429
    assert b"slow down" in body["body"]


async def test_one_that_breaks_off_is_never_a_clean_end() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"half"
        raise ValueError("torn")

    items, told = await play(app_of(lambda _: StreamingResponse(chunks())))
    assert told == [False]
    for some in (items, [*items, b"x"], []):
        with pytest.raises(InternalError):
            await given(some)


async def test_a_stream_that_breaks_off_ends_with_an_error() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"data: half\n\n"
        raise ValueError("torn")

    items, told = await play(
        app_of(lambda _: StreamingResponse(chunks(), media_type="text/event-stream"))
    )
    assert told == [False]

    async def lost() -> AsyncIterator[Sequence[bytes]]:
        yield items
        raise Unavailable("the worker is gone", code="worker_lost")

    for reader, code in (
        (ArchivedReader("s", items, 0), "answer_broken"),
        (cast(StreamReader, lost()), "worker_lost"),
    ):
        sent: list[Message] = []

        async def send(message: Message, sent: list[Message] = sent) -> None:
            sent.append(message)

        await give(reader, send, is_replay=True)
        assert [message["body"] for message in sent[1:-1]] == [b"data: half\n\n"]
        assert events(sent[-1]["body"])[0]["error"]["code"] == code
        assert not sent[-1]["more_body"]


async def test_what_is_closed_is_told_that_its_client_left() -> None:
    heard = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        heard.set()
        assert (await receive())["type"] == "http.disconnect"
        raise ClientDisconnect

    told = list[bool]()

    async def on_end(is_good: bool, is_whole: bool) -> None:
        told.append(is_good)

    work = AnswerWork(app, new_scope(), b"", on_end)
    reading = asyncio.create_task(items_of(work))
    work.start()
    await heard.wait()
    work.close()
    assert await reading == []
    assert told == [False]
    # One that never began has nothing to tell.
    work = AnswerWork(app, new_scope(), b"", on_end)
    work.close()
    assert await items_of(work) == []
    assert told == [False]


async def test_the_work_outlives_the_request_that_began_it() -> None:
    request_ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await request_ended.wait()
        known = context.of(scope)
        assert known.request_id == request_id
        assert known.disconnect is not None
        assert not known.disconnect.has_left
        known.notes["user"] = "u"
        await Response(b"said")(scope, receive, known.send)

    scope = new_scope()
    known = context.of(scope)
    request_id, notes = known.request_id, known.notes

    async def on_end(is_good: bool, is_whole: bool) -> None:
        assert is_good

    work = AnswerWork(app, scope, b"", on_end)
    reading = asyncio.create_task(items_of(work))
    work.start()
    context.detach(scope)
    request_ended.set()
    assert (await given(await reading))[1]["body"] == b"said"
    assert known.send is send_nowhere
    assert notes == {"user": "u"}
