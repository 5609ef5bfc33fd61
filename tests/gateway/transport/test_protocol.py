"""The limits below ASGI, and the limits on bodies, from raw sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET
from typing import Any

import pytest

from tests.gateway.engine_double import EngineDouble, Play
from tests.gateway.raw_http import RawClient, exchange, get, post
from tests.gateway.serving import Gateway, chat_body, served_double, until

pytestmark = pytest.mark.asyncio

BODY = json.dumps(chat_body()).encode()


async def test_headers_too_large(gateway: Gateway) -> None:
    for headers in (
        b"x-big: " + b"a" * 70_000 + b"\r\n",
        b"x-small: a\r\n" * 101,
        b"".join(b"x-%d: %s\r\n" % (i, b"a" * 1000) for i in range(80)),
    ):
        answer = await exchange(gateway, b"GET /livez HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n")
        assert answer.status == 431
        assert answer.error["code"] == "headers_too_large"
        assert answer.headers["x-request-id"]
        assert answer.headers["connection"] == "close"


async def test_how_large_headers_may_be_is_a_setting(model_dir: Path) -> None:
    async with served_double(model_dir, max_header_bytes=2000) as (gateway, _):
        for size, status in ((1500, 200), (2500, 431)):
            header = b"x-big: " + b"a" * size + b"\r\n"
            raw = b"GET /livez HTTP/1.1\r\nhost: x\r\n" + header + b"\r\n"
            answer = await exchange(gateway, raw)
            assert answer.status == status
        assert "2000 bytes" in answer.error["message"]


async def test_one_endless_header_is_cut_off_early(gateway: Gateway) -> None:
    client = await RawClient.connect(gateway)
    client.send(b"GET /livez HTTP/1.1\r\nx-bomb: ")
    sent = 0
    try:
        while sent < 50_000_000 and not client.reader.at_eof():
            client.send(b"a" * 65_536)
            sent += 65_536
            await asyncio.wait_for(client.writer.drain(), 5)
            await asyncio.sleep(0)
    except (ConnectionError, TimeoutError):
        pass
    assert sent < 20_000_000
    client.reset()


async def test_a_long_url_counts(gateway: Gateway) -> None:
    answer = await exchange(gateway, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.status == 431


async def test_large_bodies_do_not_count_as_headers(gateway: Gateway) -> None:
    body = json.dumps(chat_body("x" * 100_000)).encode()
    answer = await exchange(gateway, post(gateway, body))
    assert answer.error["code"] == "context_length_exceeded"
    client = await RawClient.connect(gateway)
    for _ in range(3):  # and the count starts anew with each request of a connection
        client.send(post(gateway, BODY, x_pad="a" * 40_000))
        assert (await client.answer()).status == 200
    await client.close()


async def test_bad_http_is_an_error_object(gateway: Gateway) -> None:
    for request in (
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\r\n\r\n",
    ):
        answer = await exchange(gateway, request)
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"


async def test_a_request_may_not_say_its_length_twice(gateway: Gateway) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    smuggled = (
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    )
    for rest in smuggled:
        answer = await exchange(gateway, head + rest)
        assert answer.status == 400
        assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /livez HTTP/1.1\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nhost: a\r\nhost: a\r\n", 400),
        (b"GET /livez HTTP/1.0\r\nhost: a\r\nhost: b\r\n", 400),
        (b"GET /livez HTTP/1.0\r\n", 200),
        (b"GET /v1/chat HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: upgrade\r\n"
         b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
         b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n", 400),
    ],
)  # fmt: skip
async def test_a_request_is_for_one_host(gateway: Gateway, head: bytes, status: int) -> None:
    answer = await exchange(gateway, head + b"\r\n")
    assert answer.status == status


async def test_silent_and_slow_sockets_are_dropped(model_dir: Path) -> None:
    async with served_double(model_dir, header_timeout_s=0.3, body_timeout_s=0.3) as (gateway, _):
        silent = await RawClient.connect(gateway)
        half_headers = await RawClient.connect(gateway)
        half_headers.send(b"GET /livez HTTP/1.1\r\nhos")
        half_body = await RawClient.connect(gateway)
        half_body.send(post(gateway, BODY)[:-5])
        async with asyncio.timeout(30):
            assert await silent.reader.read() == b""
            assert await half_headers.reader.read() == b""
            answer = await half_body.answer()
        assert answer.status == 408
        assert answer.error["code"] == "request_timeout"
        await until(lambda: not gateway.server.server_state.connections)
        for client in (silent, half_headers, half_body):
            await client.close()


async def test_a_slow_second_request_is_dropped_too(model_dir: Path) -> None:
    async with served_double(model_dir, header_timeout_s=0.3) as (gateway, _):
        client = await RawClient.connect(gateway)
        client.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await client.answer()).status == 200
        await asyncio.sleep(0.4)  # idle is fine: that has its own limit
        client.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\nGET /li")
        assert (await client.answer()).status == 200
        async with asyncio.timeout(30):
            assert await client.reader.read() == b""
        await client.close()


async def test_a_newcomer_takes_the_place_of_an_idle_connection(model_dir: Path) -> None:
    async with served_double(model_dir, max_connections=3) as (gateway, _):
        silent = await RawClient.connect(gateway)
        await until(lambda: len(gateway.server.server_state.connections) == 1)
        idle, halfway = [await RawClient.connect(gateway) for _ in range(2)]
        for client in (idle, halfway):
            client.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await client.answer()).status == 200
        halfway.send(b"GET /livez HT")
        await until(lambda: len(gateway.server.server_state.connections) == 3)
        newcomers = []
        for gone, is_told in ((silent, True), (idle, False), (halfway, True)):
            newcomers.append(await RawClient.connect(gateway))
            async with asyncio.timeout(30):
                if is_told:
                    answer = await gone.answer()
                    assert answer.status == 503
                    assert answer.error["code"] == "overloaded"
                assert await gone.reader.read() == b""
        newcomers[-1].send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await newcomers[-1].answer()).status == 200
        for client in (silent, idle, halfway, *newcomers):
            await client.close()


async def test_no_request_with_a_key_gives_way(model_dir: Path) -> None:
    async with served_double(model_dir, max_connections=2) as (gateway, double):
        double.script = lambda _: Play(queued_s=60)
        busy = [await RawClient.connect(gateway) for _ in range(2)]
        for client in busy:
            client.send(post(gateway, BODY))
        await until(lambda: len(double.requests) == 2)
        for _ in range(3):
            newcomer = await RawClient.connect(gateway)
            answer = await newcomer.answer()
            await newcomer.close()
            assert answer.status == 503
            assert answer.error["code"] == "overloaded"
        busy.pop().reset()
        await until(lambda: len(gateway.server.server_state.connections) < 2)
        assert (await get(gateway, "/livez")).status == 200
        busy.pop().reset()


async def test_a_body_too_large(model_dir: Path) -> None:
    async with served_double(model_dir, max_body_bytes=1000) as (gateway, double):
        announced = await exchange(gateway, post(gateway, b"x" * 1001))
        assert announced.status == 413
        assert announced.error["code"] == "request_too_large"
        chunked = post(gateway, b"", content_length="", transfer_encoding="chunked")
        chunk = b"258\r\n" + b"x" * 600 + b"\r\n"
        streamed = await exchange(gateway, chunked + chunk * 2 + b"0\r\n\r\n")
        assert streamed.status == 413
        client = await RawClient.connect(gateway)
        client.send(post(gateway, b"", content_length="1000000", expect="100-continue"))
        assert (await client.answer()).status == 413  # without asking for the body
        await client.close()
        assert not double.requests


async def test_a_client_that_sends_all_before_it_reads_is_told(gateway: Gateway) -> None:
    """http.client would find the connection reset under it."""

    def send(num_bytes: int) -> int:
        connection = http.client.HTTPConnection(gateway.host, gateway.port, timeout=20)
        headers = {"Authorization": f"Bearer {gateway.api_key}"}
        try:
            connection.request("POST", "/v1/chat/completions", b"x" * num_bytes, headers)
            return connection.getresponse().status
        finally:
            connection.close()

    for _ in range(3):
        assert await asyncio.to_thread(send, 20_000_000) == 413


async def test_a_body_in_small_pieces(gateway: Gateway) -> None:
    client = await RawClient.connect(gateway)
    request = post(gateway, BODY)
    for cut in range(0, len(request), 7):
        client.send(request[cut : cut + 7])
        await asyncio.sleep(0)
    assert (await client.answer()).status == 200
    await client.close()


async def test_leaving_in_the_middle_of_a_body(gateway: Gateway, double: EngineDouble) -> None:
    client = await RawClient.connect(gateway)
    client.send(post(gateway, BODY)[:-5])
    await asyncio.sleep(0.05)
    client.reset()
    await until(lambda: not gateway.server.server_state.tasks)
    assert not double.requests


async def test_pipelined_requests_are_answered_in_order(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="one" if "A?" in prompt else "two")
    client = await RawClient.connect(gateway)
    bodies = [json.dumps(chat_body(text)).encode() for text in ("A?", "B?")]
    client.send(post(gateway, bodies[0]) + post(gateway, bodies[1]))
    answers = [(await client.answer()).json() for _ in range(2)]
    assert [a["choices"][0]["message"]["content"] for a in answers] == ["one", "two"]
    await client.close()


async def test_a_connection_that_breaks_amid_pipelined_requests_is_no_error_of_ours(
    gateway: Gateway, double: EngineDouble, caplog: pytest.LogCaptureFixture
) -> None:
    double.script = lambda prompt: Play(queued_s=60.0)
    client = await RawClient.connect(gateway)
    client.send(post(gateway, BODY) * 2)
    await until(lambda: double.running)
    (connection,) = gateway.server.server_state.connections
    connection.transport.abort()
    await until(lambda: not double.running and not gateway.server.server_state.tasks)
    client.reset()
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


async def test_an_answer_that_nobody_reads_does_not_stay(model_dir: Path) -> None:
    """Not a stream: it is in the server's memory as a whole, and the connection is closing."""
    async with served_double(model_dir, send_timeout_s=0.3, max_model_len=10**7) as (
        gateway,
        double,
    ):
        double.script = lambda prompt: Play(text="x" * 1_000_000, at_once=True)
        client = await RawClient.connect(gateway)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        # One that grows takes twice as many answers, each of which takes a busy machine seconds.
        client.writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, 65_536)
        for _ in range(20):  # pipelined: more than the kernel's buffers take
            client.send(post(gateway, BODY))
        await until(lambda: not gateway.server.server_state.connections, within_s=120)
        client.reset()


UPGRADE = (
    b"GET /v1/chat HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    ("rest", "status", "code"),
    [
        (b"x-long: " + b"a" * 9000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"content-length: 5\r\n\r\nhello", 400, "invalid_request"),
    ],
)
async def test_a_handshake_that_cannot_be_read_is_answered(
    gateway: Gateway, rest: bytes, status: int, code: str
) -> None:
    client = await RawClient.connect(gateway)
    client.send(UPGRADE + rest)
    async with asyncio.timeout(10):
        answer = await client.answer()
        assert await client.reader.read() == b""  # it stays for nothing
    assert (answer.status, answer.error["code"]) == (status, code)
    await client.close()
    await until(lambda: not gateway.server.server_state.connections)


async def test_an_upgrade_does_not_pass_the_answer_before_it(
    gateway: Gateway, double: EngineDouble
) -> None:
    double.script = lambda prompt: Play(text="one", queued_s=0.2)
    client = await RawClient.connect(gateway)
    client.send(post(gateway, BODY) + UPGRADE + b"\r\n")
    async with asyncio.timeout(10):
        answer = await client.answer()
        assert answer.json()["choices"][0]["message"]["content"] == "one"
        assert (await client.answer()).status == 404  # it is no WebSocket
        client.send(UPGRADE + b"\r\n")
        assert (await client.head()).status == 101  # once nothing is before it, it may be
    client.reset()


async def test_no_answer_is_put_into_another(gateway: Gateway, double: EngineDouble) -> None:
    double.script = lambda prompt: Play(text="one two three", interval_s=0.05)
    for garbage in (b"NONSENSE\r\n\r\n", b"GET /" + b"a" * 70_000):
        client = await RawClient.connect(gateway)
        client.send(post(gateway, json.dumps(chat_body(stream=True)).encode()))
        assert (await client.head()).status == 200
        client.send(garbage)
        async with asyncio.timeout(10):
            rest = await client.reader.read()
        assert b"HTTP/1.1" not in rest
        assert not rest.endswith(b"0\r\n\r\n")  # nor does it look complete
        client.reset()


async def test_nothing_keeps_a_connection_without_a_request(model_dir: Path) -> None:
    async with served_double(model_dir, header_timeout_s=0.3) as (gateway, _):
        blank = await RawClient.connect(gateway)
        blank.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await blank.answer()).status == 200
        unread = await RawClient.connect(gateway)
        unread.send(post(gateway, b"", key="none", content_length="1000000"))
        assert (await unread.answer()).status == 401
        async with asyncio.timeout(10):
            while gateway.server.server_state.connections:
                blank.send(b"\r\n")
                unread.send(b"x")
                await asyncio.sleep(0.05)
        for client in (blank, unread):
            client.reset()


async def test_an_idle_connection_is_kept_for_a_while(model_dir: Path) -> None:
    async with served_double(model_dir, header_timeout_s=30.0, keep_alive_timeout_s=1) as (
        gateway,
        _,
    ):
        client = await RawClient.connect(gateway)
        for _ in range(2):
            client.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await client.answer()).status == 200
            await asyncio.sleep(0.1)
        async with asyncio.timeout(10):
            assert await client.reader.read() == b"", "it ends without a word"
        await client.close()


async def test_a_websocket_is_under_no_limit_of_requests(model_dir: Path) -> None:
    limits: dict[str, Any] = {
        "header_timeout_s": 0.2,
        "keep_alive_timeout_s": 1,
        "ws_auth_timeout_s": 30.0,
    }
    async with served_double(model_dir, **limits) as (gateway, _):
        client = await RawClient.connect(gateway)
        client.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await client.answer()).status == 200
        client.send(UPGRADE + b"\r\n")
        assert (await client.head()).status == 101
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(), 1.5)
        client.reset()


async def test_a_body_that_comes_after_its_answer_ends_no_connection(model_dir: Path) -> None:
    async with served_double(model_dir, header_timeout_s=0.3) as (gateway, _):
        client = await RawClient.connect(gateway)
        client.send(post(gateway, b"", key="none", content_length="4"))
        assert (await client.answer()).status == 401
        client.send(b"xxxx")
        await asyncio.sleep(0.5)
        client.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await client.answer()).status == 200
        await client.close()
