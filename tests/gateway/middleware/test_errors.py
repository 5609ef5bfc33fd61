from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from gateway.errors import Overloaded
from gateway.middleware.errors import Errors
from tests.gateway.raw_http import exchange, get
from tests.gateway.serving import Gateway

pytestmark = pytest.mark.asyncio

START: Message = {"type": "http.response.start", "status": 200, "headers": []}


async def run(
    kind: str,
    raised: BaseException,
    *before: Message,
    is_draining: bool = False,
    sent: list[Message] | None = None,
) -> list[Message]:
    """What is sent when an app sends ``before`` and then raises; in ``sent``, too."""
    sent = [] if sent is None else sent

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in before:
            await send(message)
        raise raised

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is to be read")

    scope: dict[str, Any] = {"type": kind, "path": "/", "method": "GET", "headers": []}
    await Errors(app, is_draining=lambda: is_draining)(scope, receive, send)
    return sent


async def test_an_error_before_the_answer_becomes_the_answer() -> None:
    start, body = await run("http", Overloaded("busy", retry_after_s=3))
    assert start["status"] == 503
    assert (b"retry-after", b"3") in start["headers"]
    assert json.loads(body["body"])["error"]["message"] == "busy"


async def test_a_websocket_is_refused_with_a_real_http_answer() -> None:
    start, body = await run("websocket", Overloaded("busy"))
    assert start["type"] == "websocket.http.response.start"
    assert start["status"] == 503
    assert body["type"] == "websocket.http.response.body"


async def test_an_open_websocket_is_closed() -> None:
    *_, last = await run("websocket", RuntimeError("bug"), {"type": "websocket.accept"})
    assert (last["type"], last["code"]) == ("websocket.close", 1011)


async def test_an_answer_that_began_is_torn(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError, match="bug"):
        await run("http", RuntimeError("bug"), START)
    assert "RuntimeError: bug" in caplog.text


@pytest.mark.parametrize("before", [(), (START,)])
async def test_a_client_that_left_is_told_nothing(before: tuple[Message, ...]) -> None:
    assert await run("http", ClientDisconnect(), *before) == list(before)


async def test_what_a_shutdown_cancels_unanswered_is_answered() -> None:
    start, body = await run("http", asyncio.CancelledError(), is_draining=True)
    assert start["status"] == 503
    assert (b"retry-after", b"1") in start["headers"]
    assert "shutting down" in json.loads(body["body"])["error"]["message"]


@pytest.mark.parametrize(
    ("before", "is_draining"), [((), False), ((START,), True), ((START,), False)]
)
async def test_whatever_else_is_cancelled_stays_cancelled(
    before: tuple[Message, ...], is_draining: bool
) -> None:
    sent: list[Message] = []
    with pytest.raises(asyncio.CancelledError):
        await run("http", asyncio.CancelledError(), *before, is_draining=is_draining, sent=sent)
    assert sent == list(before)


async def test_what_a_client_that_left_is_not_sent_is_no_error_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})

    async def send(message: Message) -> None:
        raise ClientDisconnected

    async def receive() -> Message:
        return {"type": "websocket.disconnect"}

    with pytest.raises(ClientDisconnected):
        await Errors(app)({"type": "websocket", "path": "/"}, receive, send)
    assert not caplog.records


async def test_routes_that_are_not_there(gateway: Gateway) -> None:
    key = f"Bearer {gateway.api_key}"
    answer = await get(gateway, "/v1/nothing", authorization=key)
    assert answer.status == 404
    assert answer.error["code"] == "not_found"
    answer = await get(gateway, "/v1/completions", authorization=key)
    assert answer.status == 405
    assert answer.error["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "POST"
    # Two routes share this path.
    head = f"PUT /v1/responses/r HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n\r\n"
    answer = await exchange(gateway, head.encode())
    assert answer.status == 405
    assert answer.headers["allow"] == "DELETE, GET, HEAD"
    assert "DELETE, GET, HEAD" in answer.error["message"]
    # A slash too many is another path, and no redirect that would echo the Host header.
    answer = await get(gateway, "/v1/models/", authorization=key)
    assert answer.status == 404


async def test_a_bug_is_a_500(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    lifecycle: Any = gateway.app.state.services.lifecycle
    patched: Callable[[], None] = broken
    type(lifecycle).draining, before = property(lambda self: patched()), type(lifecycle).draining
    try:
        answer = await get(gateway, "/readyz")
    finally:
        type(lifecycle).draining = before
    assert answer.status == 500
    assert answer.error["code"] == "internal_error"
    assert answer.headers["x-should-retry"] == "false"
    assert "ZeroDivisionError" in caplog.text
